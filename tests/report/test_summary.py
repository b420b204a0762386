"""The table of the first screen: every defence in one row, in words that need no epsilon."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from leakline.decide.choose import choose
from leakline.decide.limits import hits, places_of, read_limit
from leakline.readings import Reading
from leakline.report.page.build import build_report
from leakline.report.page.cardviews import card_views
from leakline.report.page.cost import lost_text, utility_text
from leakline.report.page.summary import summary
from leakline.report.page.words import Glance, glances, in_short, shared_warnings, who_is_protected
from leakline.results import read


def lines_of(root):
    return {line.defence: line for line in summary(read(root)).lines}


def test_a_row_says_promise_leak_and_price(made):
    results = read(made)
    found = lines_of(made)
    none, noisy = found["none"], found["global-dp"]
    assert none.undefended
    assert not noisy.undefended
    assert (none.verdict, none.limit.text, none.utility.more) == ("none", "no limit", "")
    assert noisy.limit.text == "76 of 100 times"  # two rounds: mu = sqrt(2), advantage 2 Phi(mu / 2) - 1 = 0.52
    settings = {s.defence: s for s in results.settings}
    worst = settings["none"].worst
    assert none.attack.text == f"right {100 * worst.estimate.mean:.0f} of 100 times"
    assert none.attack.more.startswith("loss-threshold, ")
    values = read(made).frame.query("measure == 'accuracy' and round == 1").groupby("defence")["value"].mean()
    assert noisy.utility.text == f"{100 * values['global-dp']:.1f} %"
    assert noisy.utility.more.endswith("better than always answering 3")


def test_points_lost_are_said_of_a_model_that_is_worth_something(made):
    results = read(made)
    cells = [replace(c, readings=tuple(replace(r, chance=None) for r in c.readings)) for c in results.cells]
    line = {line.defence: line for line in summary(replace(results, cells=tuple(cells))).lines}["global-dp"]
    values = results.frame.query("measure == 'accuracy' and round == 1").groupby("defence")["value"].mean()
    lost = 100 * (values["none"] - values["global-dp"])
    assert line.utility.more == f"{abs(lost):.1f} points {'lost' if lost > 0 else 'gained'}"


def with_utility(results, *figures):
    """The same cells, with these figures (measure, value, low, high, constant answer's) as what their models can do."""
    said = {"blind": "always answering ill"}
    last = [Reading(m, v, low, high, 42, round=1, chance=c, about=said) for m, v, low, high, c in figures]
    return replace(results, cells=tuple(replace(cell, readings=tuple(last)) for cell in results.cells))


RANKS = ("auc_binary", 0.93, 0.85, 0.99, 0.5)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ([("accuracy", 0.381, 0.25, 0.53, 0.619), ("balanced_accuracy", 0.5, 0.5, 0.5, 0.5), RANKS],
         "no better than always answering ill; another threshold on its scores may do better (AUC 0.93)"),
        ([("accuracy", 0.65, 0.5, 0.78, 0.619)], "not measurably better than always answering ill"),
        ([("accuracy", 0.85, 0.8, 0.9, 0.95), ("balanced_accuracy", 0.85, 0.75, 0.9, 0.5)],
         "no better than always answering ill by accuracy, but by balanced accuracy; 0.0 points lost"),
        ([("accuracy", 0.9, 0.8, 0.96, 0.619), RANKS], "0.0 points lost"),
    ],
)  # fmt: skip
def test_the_first_screen_and_choose_judge_a_model_by_what_it_answers(made, figures, says):
    """Right for 16 of 42, as who always names the rarer class is: a good AUC once kept that off the page."""
    results = with_utility(read(made), *figures)
    line = {line.defence: line for line in summary(results).lines}["global-dp"]
    assert line.utility.more == says
    better, _, _ = says.partition("; 0.0")
    told = next(g for g in glances(results) if g.defence == "global-dp").cost
    assert (f"The model is {better}." in told) == ("better" in says)
    ranked = choose(results, [read_limit("accuracy >= 0.1")])
    useless = "better" in says and "but by" not in says
    # the bold sentence, which alone would praise a promise that left nothing to use
    assert in_short(results).endswith("under global-dp the model is no better than a constant answer.") == useless
    assert [c.kept for c in ranked] == [not useless] * 2
    assert bool(hits([read_limit("accuracy < 0.1")], places_of(results))) == ("better" in says)


def test_the_page_shows_the_table_once_with_a_row_for_each_defence(made, tmp_path, read_page):
    page = read_page(build_report(read(made), tmp_path / "r.html"))
    assert page.text.count("Every defence in one table") == 1
    assert page.text.count("The strongest attack tried") == 1
    labels = [a["data-label"] for tag, a in page.elements if tag == "td" and "data-label" in a]
    assert labels.count("Any attacker is right at most") == 2


def test_what_was_not_measured_is_said(root, edit):
    for run in (root / "runs").iterdir():
        edit(run / "end.json", lambda end: end.pop("lines"))
        (run / "attacks.jsonl").unlink()
        (run / "readings.jsonl").write_text("")
    found = lines_of(root)
    assert {line.attack.text for line in found.values()} == {"none was tried"}
    assert {line.utility.text for line in found.values()} == {"not measured"}


@pytest.mark.parametrize(
    ("low", "says"), [(2.5, "An audit proved epsilon ≥ 2.5"), (float("inf"), "An audit found no noise at all")]
)
def test_an_audit_alone_stands_where_attacks_would(root, low, says):
    for run in (root / "runs").iterdir():
        line = {"measure": "epsilon", "value": low, "low": low, "n": 50, "by": "audit", "attack": "audit-1"}
        (run / "attacks.jsonl").write_text(json.dumps(line) + "\n")
    assert lines_of(root)["none"].attack.text == says


def test_an_attack_that_asks_no_yes_or_no_question(root):
    for run in (root / "runs").iterdir():
        line = {"measure": "ssim", "value": 0.4, "chance": 0.1, "by": "inversion", "attack": "i-1"}
        (run / "attacks.jsonl").write_text(json.dumps(line) + "\n")
    cell = lines_of(root)["none"].attack
    assert cell.text == "images at SSIM 0.40"
    assert cell.more == "inversion, 0.40 to 0.40; a guess without the update: 0.10"  # over two seeds that agree
    (said,) = next(g for g in glances(read(root)) if g.defence == "none").attack
    assert said.startswith("The attack inversion rebuilt images from what clients sent: similarity (SSIM) 0.40")
    assert "1 is the same image, and a guess without the update has 0.10." in said
    assert said.endswith(" No defence tried here stops it.")  # it was as good under every one of them


def test_the_client_whose_images_were_rebuilt_best_is_named(root):
    """A mean over clients would hide the one who has been read."""
    for run in (root / "runs").iterdir():
        line = {"measure": "ssim", "value": 0.3, "chance": 0.4, "by": "inversion", "attack": "i-1"}
        own = [{**line, "client": "ann", "value": 0.97, "chance": 0.35}, {**line, "client": "bob", "value": 0.1}]
        (run / "attacks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in (line, *own)))
    cell = lines_of(root)["none"].attack
    assert cell.text == "images at SSIM 0.97 (ann)"
    assert cell.more == "inversion; a guess without the update: 0.35; mean of all attacked there 0.30"
    (said,) = next(g for g in glances(read(root)) if g.defence == "none").attack
    assert said.startswith("The attack inversion rebuilt ann's images from what clients sent: similarity (SSIM) 0.97;")
    assert "The mean of all attacked there is 0.30" in said


def seen(value, prior, again, seat="server", client=None, **about):
    """SSIM and the share that is found again, of a client or of all."""
    about |= {"seat": seat} if seat != "server" else {}
    ends = (value - 0.05, value + 0.02)
    return (
        Reading("ssim", value, *ends, 3, chance=prior, by=f"of-{seat}", client=client, about=about),
        Reading("iip-exact", again, 0.1, 1.0, 3, chance=0.01, by=f"of-{seat}", client=client),
    )


def attacked(made, **by_defence):
    results = read(made)
    cells = tuple(replace(c, attacks=by_defence.get(c.labels["defence"].replace("-", "_"), ())) for c in results.cells)
    return {g.defence: " ".join(g.attack) for g in glances(replace(results, cells=cells))}


def test_each_seat_has_its_worst_client_its_worst_image_and_what_stops_it(made):
    ann = {"client": "ann", "nearest": 0.99, "nearest-again": 1.0}
    lost = seen(0.40, 0.45, 0.0)
    for under, stops in ((lost, "Under global-dp it rebuilt nothing."), (seen(0.6, 0.45, 0.0), "No defence tried")):
        said = attacked(made, none=(*seen(0.6, 0.4, 0.5), *seen(0.8, 0.4, 2 / 3, **ann)), global_dp=under)["none"]
        assert "rebuilt ann's images from what clients sent: similarity (SSIM) 0.80, 95 % interval 0.75 to 0.82" in said
        assert "The worst image has 0.99, found again among all images; 67 of 100 are found again" in said
        assert "The mean of all attacked there is 0.60, 95 % interval 0.55 to 0.62" in said
        assert stops in said
    cheats = (*seen(0.6, 0.4, 0.5, "malicious-server"), *seen(0.8, 0.4, 0.0, "malicious-server", **ann))
    said = attacked(made, none=cheats)["none"]
    assert "takes ann's images: similarity (SSIM) 0.80, 95 % interval 0.75 to 0.82, a guess has 0.40." in said
    assert "The worst image has 0.99, found again among all images" in said
    assert "(pinned-model) refuse it" in said


def test_an_attack_without_time_stops_nobody_and_images_found_again_are_not_stopped(made):
    hurried = tuple(replace(r, about=EFFORT) for r in seen(0.40, 0.45, 0.0))
    for under in (hurried, seen(0.40, 0.45, 0.3)):
        assert "No defence tried" in attacked(made, none=seen(0.8, 0.4, 0.5), global_dp=under)["none"]


def test_images_no_nearer_than_a_guess_are_no_find(root):
    for run in (root / "runs").iterdir():
        line = {"measure": "ssim", "value": 0.1, "chance": 0.4, "by": "inversion", "attack": "i-1"}
        (run / "attacks.jsonl").write_text(json.dumps(line) + "\n")
    (said,) = next(g for g in glances(read(root)) if g.defence == "none").attack
    assert said.startswith("The attack inversion rebuilt nothing: its images are no nearer than a guess")


EFFORT = {"effort": 20.0, "needs": 1000.0, "work": "iterations"}


def written(root, *lines):
    for run in (root / "runs").iterdir():
        (run / "attacks.jsonl").write_text("".join(json.dumps({"attack": "i-1", **line}) + "\n" for line in lines))
    results = read(root)
    card = next(view for view in card_views(results) if view.defence == "none")
    return {
        "first screen": " ".join(next(g for g in glances(results) if g.defence == "none").attack),
        "table": lines_of(root)["none"].attack.more,
        "card": " ".join(dict(card.rows)["attacks"]),
    }


@pytest.mark.parametrize("enough", [False, True])
def test_the_failure_of_an_attack_without_time_says_nothing(root, enough):
    about = {**EFFORT, "effort": 1000.0} if enough else EFFORT
    image = {
        "measure": "ssim",
        "value": 0.1,
        "chance": 0.4,
        "low": 0.05,
        "high": 0.5,
        "by": "inversion",
        "about": about,
    }
    guess = {"measure": "auc", "value": 0.51, "chance": 0.5, "low": 0.4, "high": 0.6, "by": "shadows", "about": about}
    for line, claim in ((image, "rebuilt nothing: "), (guess, "cannot be told")):
        said = written(root, line)
        assert (claim in " ".join(said.values())) == enough
        for place in ("first screen", "table", "card"):
            assert ("given 20 iterations where it is known to need 1,000" in said[place]) == (not enough), place
        assert ("1,000 iterations where it is known to need 1,000" in said["card"]) == enough


def test_what_an_attack_found_in_little_time_is_found(root):
    found = {"measure": "auc", "value": 0.9, "chance": 0.5, "low": 0.8, "high": 0.95, "by": "shadows", "about": EFFORT}
    said = written(root, found)
    assert "That is better than guessing" in said["first screen"]
    image = {"measure": "ssim", "value": 0.9, "chance": 0.4, "by": "inversion", "about": EFFORT}
    assert "rebuilt images from what clients sent" in written(root, image)["first screen"]


def test_an_estimate_of_epsilon_is_no_finding_and_the_highest_of_many_says_so(root):
    """Point estimates of an audit are biased upwards: beside a promise they would look like a breach."""
    for run in (root / "runs").iterdir():
        line = {"measure": "estimated-epsilon", "value": 9.0, "chance": 0.0, "by": "games", "attack": "g-1"}
        (run / "attacks.jsonl").write_text(json.dumps(line) + "\n")
    assert lines_of(root)["none"].attack.text == "see the tables"
    for run in (root / "runs").iterdir():
        lines = [
            {**line, "measure": "auc", "about": {"rule": f"{i}"}, "value": 0.5 + i / 100, "chance": 0.5}
            for i in range(6)
        ]
        (run / "attacks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    cell = lines_of(root)["none"].attack
    assert cell.text == "right 55 of 100 times"
    assert cell.more.endswith("the highest of 6 figures")


def test_gains_and_losses_of_several_settings(root, edit):
    """A second strategy, under which the defence gains what it lost under the first."""
    grid = json.loads((root / "study.json").read_text())
    cells = {cell["labels"]["defence"]: cell for cell in grid["cells"]}
    other = [
        {"labels": {**cells[a]["labels"], "strategy": "other"}, "run": digit * 16}
        for a, digit in (("none", "a"), ("global-dp", "b"))
    ]
    for new, old in zip(other, ("global-dp", "none"), strict=True):  # what none got goes to the defence
        source, target = root / "runs" / cells[new["labels"]["defence"]]["run"], root / "runs" / new["run"]
        target.mkdir()
        for path in source.iterdir():
            if path.is_file():
                (target / path.name).write_bytes(path.read_bytes())
        readings = root / "runs" / cells[old]["run"] / "readings.jsonl"
        (target / "readings.jsonl").write_bytes(readings.read_bytes())
    edit(root / "study.json", lambda found: found["cells"].extend(other))
    results = read(root)
    settings = [s for s in results.settings if s.defence == "global-dp"]
    assert len(settings) == 2
    assert " lost to " in lost_text(results, settings)
    assert " to " in utility_text(results, settings)
    assert summary(results).several


def test_who_is_protected_and_warnings_said_once(made):
    results = read(made)
    assert who_is_protected(results) == (
        "The defences are meant to hide any one client from participants, who see every published model."
    )
    (noisy,) = [g for g in glances(results) if g.warnings]
    assert shared_warnings([noisy]) == {}
    names = [Glance(f"d{i}", "none", (), (), (), noisy.warnings) for i in range(8)]
    assert shared_warnings(names) == {noisy.warnings[0]: "d0, d1, d2, d3, d4, d5 and 2 more"}
