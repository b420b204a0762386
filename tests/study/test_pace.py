"""How long a study will still take, by a clock that the test turns; and what is told while one really runs."""

from __future__ import annotations

import math

import pytest

from leakline.study.counted import Counted
from leakline.study.pace import FAR, NARROW, OWN, SURE, USUAL, Kind, Pace, Prices, Standing, duration
from leakline.study.run import run_study
from leakline.study.spec import parse


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


TRUE = {"plain": (0.5, 30, 0.4), "noisy": (1.5, 30, 1.1)}
"""By place: seconds of a round, of a world's round elsewhere counted, of the attack's own computing."""
ROUNDS, WORLDS, CELLS = 10, 8, 3


def work(pace: Pace, clock: Clock, tried: bool) -> list[tuple[float, float]]:
    """Six cells at two places, each with an attack that trains worlds and one that searches; (now, left) as told."""
    seen: list[tuple[float, float]] = []
    cells = [(f"{where} {i}", where) for where in TRUE for i in range(CELLS)]
    for where, (_, passes, _) in TRUE.items():
        pace.prices.examples[where] = 100.0
        pace.prices.tried[Kind("search", where, "inversion")] = 0.05  # a belief that is four times too small
        for name in (name for name, there in cells if there == where):
            pace.plan(name, Kind("train", where), ROUNDS)
            pace.plan(name, Kind("worlds", where, "membership"), ROUNDS * WORLDS)
            pace.plan(name, Kind("meet", where, "membership"), 1)
            pace.plan(name, Kind("search", where, "inversion"), passes)
            pace.plan(name, Kind("meet", where, "inversion"), 1)
    if tried:
        pace.prices.tried[Kind("train", "noisy")] = 1.5
    for name, where in cells:
        each, passes, own = TRUE[where]
        counted = Counted(pace, name, (name,), where)
        counted.train()
        for i in range(ROUNDS):
            clock.now += each
            counted.round("", i + 1, ROUNDS, {})
            seen.append((clock.now, pace.seconds_left[1]))
        attack = counted.meets("membership")
        for _ in range(WORLDS):
            attack.world(ROUNDS)
            for i in range(ROUNDS):
                clock.now += 0.6 * each  # worlds are smaller than they are counted
                attack.world_round("", i + 1, ROUNDS, {})
                seen.append((clock.now, pace.seconds_left[1]))
            attack.world_is_there(ROUNDS)
        clock.now += own
        attack.met()
        search = counted.meets("inversion")
        for i in range(passes):
            clock.now += 0.2 * each / 0.5
            search.said("", (i + 1) / passes)
            seen.append((clock.now, pace.seconds_left[1]))
        search.met()
        pace.drop(name)
    return seen


def worst(tried: bool) -> float:
    """The largest error of the time left between a tenth of the run and its last twentieth."""
    clock = Clock()
    seen = work(Pace(lambda standing: None, clock), clock, tried)
    late = [(now, left) for now, left in seen if 0.1 * clock.now <= now <= 0.95 * clock.now]
    assert len(late) > 300
    return max(abs(left / (clock.now - now) - 1) for now, left in late)


def test_time_left_is_near_the_truth_from_a_tenth_of_the_run_on():
    assert worst(tried=True) < 0.2
    assert worst(tried=False) > 0.5  # so a trial round of what comes later is worth its time


def test_what_was_there_teaches_nothing_and_what_ends_early_does():
    clock = Clock()
    pace = Pace(lambda standing: None, clock)
    worlds, search = Kind("worlds", "here", "a"), Kind("search", "here", "b")
    for cell in ("one", "two"):
        pace.plan(cell, worlds, 20)
        pace.plan(cell, search, 100)
    attack = Counted(pace, "one", (), "here").meets("a")
    attack.world(10)
    attack.world_is_there(10)  # all of its ten rounds were there
    assert pace.left["one", worlds] == 10
    assert pace.prices.units[worlds] == 0
    attack.world(10)
    for i in range(10):
        clock.now += 2
        attack.world_round("", i, 10, {})
    attack.met()
    assert pace.prices.of(worlds) == 2
    other = Counted(pace, "one", (), "here").meets("b")
    clock.now += 5
    other.said("half", 0.5)
    other.met()  # the search stopped by itself
    assert pace.prices.of(search) == pytest.approx(0.05)
    assert pace.seconds_left[1] == pytest.approx(20 * 2 + 100 * 0.05)


def test_where_places_disagree_the_least_is_by_the_one_that_took_least():
    """One place took a tenth of what was believed, one eight times that: elsewhere it may be as little again."""
    prices = Prices()
    for where, took in (("quick", 0.1), ("slow", 8.0)):
        kind = Kind("search", where, "a")
        prices.tried[kind] = 1.0
        prices.add(kind, USUAL * took * 100, 100)
    new = Kind("search", "new", "a")
    prices.tried[new] = 1.0
    low, high = SURE["search elsewhere"]
    assert prices.range(new) == pytest.approx((low * USUAL * 0.1, USUAL * 4.05, high * USUAL * 4.05))


@pytest.mark.parametrize(("what", "basis"), [("meet", "sampled"), ("worlds", "tried")])
def test_a_sample_goes_before_what_the_same_attack_took_elsewhere(what, basis):
    """An audit that has nothing to do in a cell without promises says nothing of one that has."""
    prices = Prices()
    idle, here, there = (Kind(what, where, "a") for where in ("idle", "here", "there"))
    prices.tried = {idle: 0.0, here: 10.0}
    assert prices.knows(here)
    assert not prices.knows(there)
    prices.add(idle, 0.001, 1)
    low, high = SURE[basis]
    assert prices.range(here) == pytest.approx((10 * low, 10, 10 * high))
    prices.add(here, 15, 1)
    assert prices.of(here) == 15


def test_an_attack_that_trains_by_itself_is_counted_by_rounds():
    """Half of them are done after 20 s: another cell's are priced so, and what comes after them is the meeting's."""
    clock = Clock()
    pace = Pace(lambda standing: None, clock)
    for cell in ("one", "two"):
        pace.plan(cell, Kind("worlds", "here", "a"), 10)
        pace.plan(cell, Kind("meet", "here", "a"), 1)
    attack = Counted(pace, "one", (), "here").meets("a")
    for done in (1, 2):
        clock.now += 10
        attack.said("training", done / 4)
    assert pace.prices.of(Kind("worlds", "here", "a")) == 4
    assert pace.seconds_left[1] == pytest.approx(15 * 4)
    for done in (3, 4):
        clock.now += 10
        attack.said("training", done / 4)
    clock.now += 3
    attack.met()
    assert pace.seconds_left[1] == pytest.approx(10 * 4 + 3)


def test_a_search_that_was_not_needed_teaches_nothing_of_searches():
    clock = Clock()
    pace = Pace(lambda standing: None, clock)
    for cell in ("one", "two"):
        for kind, units in ((Kind("search", "here", "b"), 100), (Kind("meet", "here", "b"), 1)):
            pace.plan(cell, kind, units)
    pace.prices.tried[Kind("search", "here", "b")] = 0.5
    attack = Counted(pace, "one", (), "here").meets("b")
    clock.now += 7  # algebra showed it all
    attack.met()
    assert pace.seconds_left[1] == pytest.approx(100 * 0.5 * USUAL + 7)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_federations_side_by_side_are_priced_by_how_many_run_at_once(lanes):
    """The first of each row ends after ten seconds, the others a little later; two were there from another day."""
    clock = Clock()
    pace = Pace(lambda standing: None, clock)
    worlds = Kind("worlds", "here", "a")
    for cell in ("one", "two"):
        pace.plan(cell, worlds, 8 * 5)
    attack = Counted(pace, "one", (), "here").meets("a")
    for done in range(3, 9):
        clock.now += 9.9 if (done - 3) % lanes == 0 else 0.1
        attack.watched(5, done, 8, lanes)
        if done == 3:
            assert pace.left["one", worlds] == (6 - lanes) * 5
            assert pace.prices.of(worlds) == pytest.approx(9.9 / (5 * lanes))
    attack.met()
    assert pace.prices.of(worlds) == pytest.approx(clock.now / (6 * 5))


def test_what_an_attack_computes_after_its_worlds_and_before_its_search_is_no_price_of_either():
    clock = Clock()
    pace = Pace(lambda standing: None, clock)
    for what, units in (("worlds", 10), ("search", 100), ("meet", 1)):
        pace.plan("one", Kind(what, "here", "a"), units)
    attack = Counted(pace, "one", (), "here").meets("a")
    attack.world(10)
    for i in range(10):
        clock.now += 2
        attack.world_round("", i, 10, {})
    clock.now += 30
    attack.said("the search begins", 0.0)  # what was made for it is there for other cells
    clock.now += 5
    attack.said("done", 1.0)
    clock.now += 7
    attack.met()
    assert [pace.prices.of(Kind(what, "here", "a")) for what in ("worlds", "search", "meet")] == [2, 0.05, 7]


def test_the_first_meeting_counts_until_there_is_another():
    prices = Prices()
    here, there = Kind("meet", "here", "a"), Kind("meet", "there", "a")
    assert prices.range(there) == (0, 0, 0)
    prices.add(here, 20, 1)
    assert prices.of(here) == prices.of(there) == 20
    assert prices.range(there)[0] == pytest.approx(2)
    prices.add(there, 3, 1)
    assert prices.of(here) == prices.of(there) == 3
    prices.add(here, 5, 1)
    assert prices.of(here) == 5
    assert prices.of(Kind("meet", "elsewhere", "a")) == 4


@pytest.mark.parametrize(("took", "there"), [(1.4, 3.4), (0.5, 1.5)])
def test_worlds_take_a_round_and_something_besides_or_a_share_of_a_round(took, there):
    """Rounds take 1 s here and 3 s there: what worlds of 1.4 s need besides does not depend on the defence."""
    pace = Pace(lambda standing: None, Clock())
    pace.prices.add(Kind("train", "here"), 10, 10)
    pace.prices.add(Kind("train", "there"), 30, 10)
    pace.prices.add(Kind("worlds", "here", "a"), 100 * took, 100)
    assert pace.prices.of(Kind("worlds", "there", "a")) == pytest.approx(there)


def test_a_trial_that_was_too_short_at_one_place_is_so_at_another():
    pace = Pace(lambda standing: None, Clock())
    pace.prices.tried = {Kind("train", "here"): 1.0, Kind("train", "there"): 3.0}
    pace.prices.add(Kind("train", "here"), 20, 10)
    assert pace.prices.of(Kind("train", "there")) == 6


def test_time_is_not_known_then_at_most_then_a_range_then_one_figure():
    clock, told = Clock(), []
    pace = Pace(told.append, clock)
    pace.prices.tried[Kind("train", "here")] = 1.0
    pace.prices.tried[Kind("search", "here", "a")] = 2.0
    pace.plan("one", Kind("train", "here"), 10)
    pace.plan("one", Kind("search", "here", "a"), 100)
    cell = Counted(pace, "one", ("cell 1 of 1",), "here")
    cell.train()
    clock.now += 1
    cell.round("", 1, 10, {})
    assert told[-1].left is None
    assert told[-1].line() == "cell 1 of 1, training, round 1 of 10 (time left not known yet)"
    attack = cell.meets("a")
    lines = []
    for share, most_off in ((0.1, None), (0.4, FAR), (0.95, NARROW)):
        clock.now = 1 + 100 * share
        attack.said("searching", share)
        low, high = told[-1].left
        assert low < 9 + 100 * (1 - share) < high
        assert low == 0 if most_off is None else high <= most_off * low
        lines.append((told[-1].line(), duration(low), duration(high)))
    (first, _, most), (second, low, high), (third, _, _) = lines
    assert first == f"cell 1 of 1, a, searching (at most {most} left)"
    assert second == f"cell 1 of 1, a, searching ({low} to {high} left)"
    assert third == f"cell 1 of 1, a, searching ({duration(told[-1].about)} left)"
    low, high = told[-1].left
    assert told[-1].about / low - 1 == pytest.approx(1 - told[-1].about / high)
    assert told[-1].about / low <= 1.3


def test_kinds_err_independently_and_cells_of_one_kind_together():
    clock = Clock()
    pace = Pace(lambda standing: None, clock)
    for where in ("here", "there"):
        pace.prices.add(Kind("train", where), 10, 10)
    low, high = SURE["done"]
    pace.plan("one", Kind("train", "here"), 30)
    pace.plan("two", Kind("train", "here"), 10)
    assert pace.seconds_left == pytest.approx((40 * low, 40, 40 * high))
    pace.plan("two", Kind("train", "there"), 30)
    assert pace.seconds_left == pytest.approx((70 - 50 * (1 - low), 70, 70 + 50 * (high - 1)))


def test_an_attack_that_was_never_met_widens_the_range_and_one_that_was_is_priced():
    clock = Clock()
    pace = Pace(lambda standing: None, clock)
    pace.prices.add(Kind("train", "here"), 10, 10)
    pace.plan("one", Kind("train", "here"), 100)
    alone = pace.seconds_left
    pace.plan("one", Kind("meet", "here", "a"), 1)
    assert pace.seconds_left[:2] == alone[:2]
    assert pace.seconds_left[2] == pytest.approx(100 + math.hypot(alone[2] - 100, 100 * OWN))
    pace.prices.add(Kind("meet", "there", "a"), 7, 1)
    assert pace.seconds_left[1] == 107


def test_time_passes_while_nothing_is_told():
    clock = Clock()
    pace = Pace(lambda standing: None, clock)
    pace.plan("one", Kind("train", "here"), 4)
    clock.now += 3
    pace.did("one", Kind("train", "here"), 1)
    assert pace.seconds_left[1] == 9
    clock.now += 2
    assert pace.seconds_left[1] == 7
    clock.now += 20
    assert pace.seconds_left == (0, 0, 0)


def test_durations_as_people_say_them():
    assert [duration(s) for s in (0, 89, 90, 5399, 5400)] == ["0 s", "89 s", "2 min", "90 min", "1.5 h"]


STUDY = """
name = "watched"
data = { use = "digits", limit = 120, clients = 3, client_test = 0.5 }
model = { use = "mlp", hidden = [4] }
training = { rounds = 2, batch = 16 }
attacks = [{ use = "membership-inference", shadows = 4, records = 12 }]
defences = { none = [], noise = [{ use = "gaussian-noise", std = 0.1 }] }
"""


def test_a_run_tells_cell_attack_world_and_round_from_the_outside_in(tmp_path):
    told: list[Standing] = []
    assert not [o for o in run_study(parse(STUDY), tmp_path, workers=1, watch=told.append) if o.error]
    lines = [s.path for s in told]
    name = "fedavg noise seed 0"
    inside = ("cell 2 of 2", name, "membership-inference", "2 of 4 federations to compare with")
    assert inside in lines
    assert any(path[:4] == ("cell 1 of 2", "fedavg none seed 0", "training", "round 2 of 2") for path in lines)
    assert told[0].left is None  # nothing is known before anything was done
    assert all(0 <= s.share <= 1 for s in told)
    again: list[Standing] = []
    list(run_study(parse(STUDY), tmp_path, workers=1, watch=again.append))
    assert {s.left for s in again} == {None}  # all was there
