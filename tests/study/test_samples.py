"""What attacks compute besides training and searches is timed beforehand, from pieces: do the pieces make the whole?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

import tiny
from leakline.attacks import (
    AttributeInference,
    ClientInference,
    UserMembership,
    attribute_inference,
    user_membership,
    user_samples,
)
from leakline.attacks.base import Attack, Sample
from leakline.attacks.update_features import FEATURES
from leakline.attacks.users import LEARNERS, ridge
from leakline.bench.training import Plan
from leakline.data.base import Client
from leakline.defences import GlobalDP
from leakline.models.own import Imported
from leakline.privacy import Seat
from leakline.study.check import check_study
from leakline.study.counted import Ledger
from leakline.study.lab import Lab, examine
from leakline.study.pace import Kind, Pace, Prices
from leakline.study.spec import parse
from leakline.study.store import Store
from leakline.study.timing import Samples, Steps, place_of
from leakline.study.train import train_run

ROUNDS = 3


def users():
    """Sixteen people, of whom every second is tall."""
    people = [
        Client(f"user-{i:02d}", tiny.blobs(24, i), tiny.blobs(12, 100 + i), traits={"tall": i % 2 == 0})
        for i in range(16)
    ]
    return tiny.federation(
        task=tiny.task(clients=tuple(people)), model=tiny.perceptron, plan=Plan(2, 8, 0.1), rounds=ROUNDS
    )


@pytest.fixture
def counts(monkeypatch) -> Counter:
    """How many trees are grown, rules learnt and rows made."""
    counted: Counter = Counter()

    def seen(name, work, much=lambda *args: 1):
        def do(*args):
            counted[name] += much(*args)
            return work(*args)

        return do

    for name, learner in LEARNERS.items():
        grown = (lambda x, y, asked, seed, trees: trees) if name == "forest" else (lambda *args: 1)
        monkeypatch.setitem(LEARNERS, name, seen(name, learner, grown))
    for name, feature in FEATURES.items():
        monkeypatch.setitem(FEATURES, name, seen(name, feature))
    for module in (attribute_inference, user_membership, user_samples):
        monkeypatch.setattr(module, "ridge", seen("ridge", ridge))
    return counted


SMALL = {"folds": 2, "trees": 60, "learners": ("forest", "logistic", "discriminant")}
ATTACKS = {
    **{
        server: AttributeInference("tall", server=server, repeats=1, epochs=(1, 2), **SMALL)
        for server in ("active", "passive", "paper")
    },
    "watching": AttributeInference("tall", server="watching", repeats=2, **SMALL),
    "one feature": AttributeInference("tall", server="passive", repeats=1, features=("raw",), **SMALL),
    "took part": UserMembership(worlds=2, **SMALL),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_pieces_make_the_trees_rules_and_rows_that_the_attack_makes(name, counts, tmp_path):
    attack, federation, store = ATTACKS[name], users(), Store(tmp_path)
    expected: Counter = Counter()
    for piece in attack.samples(federation):
        counts.clear()
        piece.do(1)
        assert counts.total()
        for what, times in counts.items():
            expected[what] += times / piece.share
    run = train_run(store, federation, workers=1, keep=attack.wants(federation))
    counts.clear()
    examine(attack, Lab(federation, store, run, 1))
    assert {what: round(times, 6) for what, times in expected.items()} == dict(counts)


@dataclass(frozen=True)
class Toy(Attack):
    """Gives a piece to be timed; it is never run."""

    done: ClassVar[list[str]] = []
    seat: ClassVar[Seat] = Seat.SERVER
    name: str = "toy"
    besides: bool = True
    breaks: bool = False

    def samples(self, federation):
        def do(workers):
            self.done.append(self.name)
            if self.breaks:
                raise RuntimeError("not here")

        return [Sample(do, 0.5, self.besides)]

    def challenges(self, lab):
        raise AssertionError

    def guess(self, view, hints):
        raise AssertionError

    def measure(self, guesses, secrets):
        raise AssertionError


def test_what_is_learnt_is_timed_once_for_all_defences_and_what_is_played_for_each():
    plain = users()
    noisy = replace(plain, defences=(GlobalDP(noise_multiplier=1.0, clip=1.0),))
    samples = Samples()
    Toy.done.clear()
    for attack in (Toy("learns"), Toy("plays", besides=False)):
        for federation in (plain, noisy, plain):
            assert samples.of(attack, federation).besides == attack.besides
    assert Counter(Toy.done) == {"learns": 2, "plays": 4}  # a quick piece is done twice: the first warms up
    own = replace(plain, model=Imported("tiny:perceptron"))  # its settings are a dict, which does not hash
    for attack in (Toy("learns"), Toy("plays", besides=False)):
        assert samples.of(attack, own) is not None
    assert samples.of(Toy("breaks", breaks=True), plain) is None
    assert samples.of(replace(ATTACKS["passive"], trait="nobody's"), plain).seconds > 0


@dataclass(frozen=True)
class Searcher(Toy):
    """Searches in steps of one example and of four."""

    alone: float = 0.0
    four: float = 0.0

    def passes(self, federation):
        return self.alone + self.four

    def passes_by(self, federation):
        return {1: self.alone, 4: self.four}


def test_a_search_is_priced_by_the_examples_in_its_steps(tmp_path):
    federation, steps = users(), Steps()
    one, four = (steps.searched(Searcher(**much), federation, "net") for much in ({"alone": 1.0}, {"four": 1.0}))
    assert min(one, four) > 0
    both = steps.searched(Searcher(alone=2.0, four=3.0), federation, "net")
    assert both == pytest.approx(2 * one + 3 * four)  # timed once, so exactly these
    assert steps.searched(Searcher(), federation, "net") == 0
    assert steps.searched(Toy(), federation, "net") == 0
    ledger = Ledger(Pace(lambda standing: None), Store(tmp_path), workers=1)
    attack = Searcher(alone=2.0, four=6.0)
    ledger.count("cell", "0" * 16, federation, {"a": ("a-1", attack)})
    (price,) = (p for kind, p in ledger.pace.prices.tried.items() if kind.what == "search")
    assert price == pytest.approx(ledger.steps.searched(attack, federation, place_of(federation)) / 8)


@pytest.mark.parametrize(
    ("rounds", "counted"), [(1, 5), (2, 2 * (2 * 5 * 2))], ids=["replayed for all defences", "trained for each"]
)
def test_worlds_that_cells_share_are_counted_once(tmp_path, rounds, counted):
    plain = replace(users(), rounds=rounds)
    noisy = replace(plain, defences=(GlobalDP(noise_multiplier=1.0, clip=1.0),))
    ledger = Ledger(Pace(lambda standing: None), Store(tmp_path), workers=1)
    attack = ClientInference(worlds=5, rounds=rounds)
    for number, federation in enumerate((plain, noisy)):
        ledger.count(f"cell {number}", str(number) * 16, federation, {"a": ("a-1", attack)})
    left = {kind.what: 0.0 for _, kind in ledger.pace.left}
    for (_, kind), units in ledger.pace.left.items():
        left[kind.what] += units
    assert left == {"train": 2 * rounds, "worlds": counted, "meet": 2}


def test_a_sample_of_what_is_computed_besides_says_nothing_of_worlds():
    prices = Prices()
    worlds, meeting = (Kind(what, "here", "a") for what in ("worlds", "meet"))
    prices.tried[meeting] = 5.0
    assert prices.knows(meeting)
    assert not prices.knows(worlds)
    prices.tried = {worlds: 5.0}  # one of all that it does has the meeting in it
    assert prices.knows(meeting)
    assert prices.knows(worlds)


STUDY = """
name = "forests"
[data]
use = "motion"
subjects = 10
trials = 2
seconds = 6.0
partition = { use = "by-column", column = "subject" }
client_test = 0.5
server_test = 0.0
[model]
use = "motion-cnn"
channels = [4, 4]
hidden = [8, 8]
[training]
rounds = 1
evaluate = "clients"
[defences]
none = []
[[attacks]]
use = "user-membership"
worlds = 1
folds = 2
trees = 50
"""


def test_a_check_has_forests_on_its_bill():
    checked = check_study(parse(STUDY))
    assert not checked.problems
    bill = checked.bill
    assert bill.besides > 0
    assert bill.attacks == bill.worlds + bill.searches + bill.besides < bill.minutes
    assert checked.as_dict()["minutes_for_attacks"] == bill.attacks
    assert "for what attacks learn or play" in checked._last_line()
