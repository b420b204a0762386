"""The figures of paper 003 as tables, and the frontier of utility and attack that the paper lacks.

Built from a store of the study `fedper`, or of any study whose clients judge the model and whose attacks are
attribute-inference and user-membership. Figures average over seeds; intervals of attacks are over users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scipy.stats import combine_pvalues
from scipy.stats import norm as normal

from leakline.data.plant import TRAIT
from leakline.measures import measure_of
from leakline.readings import Reading
from leakline.report.papers import Tables
from leakline.results import Cell, Estimate, Results
from leakline.results.estimate import estimate, over_seeds
from leakline.results.settings import groups_of
from leakline.results.table import Table

PAPERS = "sorted+forest"
"""What the paper's attacker is made of: sorted neurons and a random forest."""
EFFECT = re.compile(r"effect ([\d.]+)")
"""How scenarios' names begin that plant a trait."""
FOLD, FOLDED = "data.fold", re.compile(r"fold-(\d+)")
"""The label of a sweep over folds, and how scenarios are named that are one fold each."""
GOAL = 0.9
"""The accuracy whose rounds the paper counts."""


def figure_2(results: Results) -> Table:
    """Figure 2: accuracy over users after the last round, as a distribution."""
    accuracy = results.where(attack="utility", measure="accuracy", client=lambda client: client is not None).last()
    users = {arm: _quantiles([c.readings for c in some.cells]) for arm, some in _arms(accuracy).items()}
    return _distribution("Figure 2: activity accuracy over users", users)


def figure_3(results: Results) -> Table:
    """Figure 3: mean accuracy over users by round."""
    curves = {arm: _mean_curve(some.cells) for arm, some in _arms(results).items()}
    longest = max((len(c) for c in curves.values()), default=0)
    rows = tuple((i + 1, *(c[i] if i < len(c) else None for c in curves.values())) for i in range(longest))
    return Table("Figure 3: accuracy by round", ("round", *curves), rows, "mean over users and seeds")


def rounds_to_goal(results: Results) -> Table:
    """Figure 3 in words: rounds until 90 % accuracy, and the best that was reached."""
    rows = []
    for arm, some in _arms(results).items():
        curves = [curve(c) for c in some.cells]
        reached = [next((i + 1 for i, v in enumerate(c) if v >= GOAL), None) for c in curves]
        there = [float(r) for r in reached if r is not None]
        rows.append((
            arm, estimate(there), f"{len(there)} of {len(curves)}", share([max(c) for c in curves if c]),
            estimate([float(len(c)) for c in curves]),
        ))  # fmt: skip
    columns = ("defence", "rounds to 90 %", "seeds that got there", "best accuracy", "rounds run")
    return Table("Rounds to 90 % accuracy", columns, tuple(rows), "mean over users; over the seeds that got there")


def figure_4(results: Results) -> Table:
    """Figure 4: attribute inference by local epochs, as accuracy like the paper and as AUC."""
    arms = _arms(results)
    places: dict[tuple[str, int], dict[str, tuple[Estimate | None, Estimate | None]]] = {}
    chance: dict[str, float] = {}
    for arm, some in arms.items():
        for by, epochs in _swept(some):
            right, area = (
                some.where(attack=by, measure=m, rule=PAPERS, epochs=epochs).over_seeds() for m in ("right", "auc")
            )
            places.setdefault((by, epochs), {})[arm] = (right, area)
            majority = some.where(attack=by, measure="right").every
            chance[by] = next((r.chance for r in majority if r.chance is not None), float("nan"))
    columns = ("attack", "epochs", "majority", *(f"{arm} {what}" for arm in arms for what in ("accuracy", "AUC")))
    rows = [
        (by, epochs, chance[by], *(value for arm in arms for value in got.get(arm, (None, None))))
        for (by, epochs), got in sorted(places.items())
    ]
    note = "accuracy must be held against the majority (always guessing the commoner value), AUC against 0.5"
    return Table("Figure 4: attribute inference by local epochs", columns, tuple(rows), note)


def figure_5(results: Results) -> Table:
    """Figure 5: how often each user's trait was guessed right, as a distribution over users."""
    users: dict[str, list[float]] = {}
    for arm, some in _arms(results).items():
        for by in dict.fromkeys(by for by, _ in _swept(some)):
            right = some.where(attack=by, measure="found-out")
            users[f"{arm} {by}"] = _quantiles([_most_epochs(c.attacks) for c in right.cells])
    return _distribution("Figure 5: share of right guesses over users", users)


def figure_6(results: Results) -> Table:
    """Figure 6: who took part, guessed from updates."""
    rows = []
    for arm, some in _arms(results).items():
        for by, got in some.where(measure="auc", rule=PAPERS, epochs=None).by("attack").items():
            accuracy = some.where(attack=by, measure="right", rule=PAPERS).over_seeds()
            best = some.where(attack=by, measure="auc", choice="best").over_seeds()
            rows.append((arm, by, accuracy, got.over_seeds(), *got.ends(), best))
    columns = ("defence", "attack", "accuracy", "AUC", "AUC lowest", "AUC highest", "AUC of the best attacker")
    note = "half of the users take part: chance is 0.5; lowest and highest: ends of the runs' 95 % intervals over users"
    return Table("Figure 6: user-level membership inference", columns, tuple(rows), note)


def frontier(results: Results) -> Table:
    """What the paper lacks: each defence's utility beside what the attacks got, with intervals over users."""
    rows = []
    for arm, some in _arms(results).items():
        accuracy = share([c[-1] for c in map(curve, some.cells) if c])
        promises = (p.epsilon for c in some.cells if c.card for p in c.card.promises)
        epsilon = next((epsilon for epsilon in promises if epsilon is not None), "none")
        for (by, epochs), got in some.where(measure="auc", choice="best").by("attack", "epochs").items():
            p = ", ".join(f"{r.about['p']:.3g}" for r in got.every if "p" in r.about)
            named = "" if epochs is None else f"{epochs:g}"
            rows.append((arm, epsilon, accuracy, by, named, got.over_seeds(), *got.ends(), p))
    columns = ("defence", "epsilon", "accuracy", "attack", "epochs", "AUC", "lowest", "highest", "p-values")
    note = (
        "AUC: the best of the features and learners tried, so above 0.5 by chance; p-values allow for that; "
        "lowest and highest: ends of the runs' 95 % intervals over users"
    )
    return Table("Utility against attack", columns, tuple(rows), note)


def planted(results: Results) -> Table:
    """What attribute inference gets of a trait that was planted, by its effect (`leakline.data.plant`)."""
    rows = []
    asked = results.finished.where(measure="auc", choice="best", attack=lambda by: by.startswith(TRAIT))
    for (scenario, arm, by), got in asked.by("scenario", "defence", "attack").items():
        if effect := EFFECT.match(str(scenario)):
            size, p = float(effect[1]), [float(r.about["p"]) for r in got.every]
            listed, all_seeds = ", ".join(f"{one:.3g}" for one in p), float(combine_pvalues(p).pvalue)
            ceiling = normal.cdf(size / 2**0.5)
            rows.append((size, ceiling, arm, by, got.over_seeds(), *got.ends(), listed, f"{all_seeds:.2g}"))
    columns = ("effect", "ceiling", "defence", "attack", "AUC", "lowest", "highest", "p-values", "p, all seeds")
    note = (
        "effect: Cohen's d of walking strength; ceiling: AUC of who reads that itself; AUC: the best of features and "
        "learners tried, which p-values allow for; lowest and highest: ends of the runs' 95 % intervals over users; "
        "all seeds: Fisher's method, since each seed draws its own half of the users"
    )
    return Table("A planted trait", columns, tuple(sorted(rows, key=lambda row: row[0])), note)


def folds(results: Results) -> Table:
    """The paper's k-fold cross-validation: accuracy over users and folds, with an interval over its repeats.

    Of `--preset folds`, or a sweep of `data.fold` with `data.seed = "each"`: a repeat is a seed, which deals every
    user's recordings out anew.
    """
    rows = []
    for arm, whole in repeats(results).items():
        every = [value for repeat in whole.values() for value in repeat]
        means = share([_mean(repeat) for repeat in whole.values()])
        gain = crossed(results, arm, "vanilla") if arm != "vanilla" else None
        rows.append((arm, len(every) // len(whole), len(whole), means, min(every), max(every), gain))
    columns = (
        "defence", "folds", "repeats", "accuracy, last round", "lowest fold", "highest fold", "less vanilla",
    )  # fmt: skip
    note = (
        "mean over users and folds; the 95 % t-interval is over repeats, which are of the same people and recordings: "
        "it says how far dealing them out and starting anew move the mean, not what other people would give; less "
        "vanilla: paired, over repeats and over users, whose t-intervals' half-widths are added as squares"
    )
    return Table("Cross-validated accuracy", columns, tuple(rows), note)


def repeats(results: Results) -> dict[str, dict[object, list[float]]]:
    """By defence and seed the accuracies of all folds; one that lacks a fold is left out: its mean would be of less."""
    return {
        arm: {seed: [curve(cell)[-1] for cell in cells] for seed, cells in seeds.items()}
        for arm, seeds in _whole(results).items()
    }


def crossed(results: Results, one: str, other: str) -> Estimate | None:
    """Cross-validated accuracy of one scheme less that of another, with a 95 % interval over repeats and users.

    Over repeats: how far dealing recordings out and starting anew move it. Over users, each with the mean of all folds:
    what other people would give. Half-widths of both t-intervals are added as squares.
    """
    whole = _whole(results)
    mine, theirs = whole.get(one, {}), whole.get(other, {})
    seeds, gaps = [seed for seed in mine if seed in theirs], dict[str, list[float]]()
    if not seeds:
        return None
    for seed in seeds:
        beside = {fold_of(cell): _by_user(cell) for cell in theirs[seed]}
        for cell in mine[seed]:
            others = beside[fold_of(cell)]
            for user, value in _by_user(cell).items():
                if user in others:  # who was dropped from one of the two has no difference
                    gaps.setdefault(user, []).append(value - others[user])
    means = [_mean([curve(c)[-1] for c in mine[seed]]) - _mean([curve(c)[-1] for c in theirs[seed]]) for seed in seeds]
    over_repeats = estimate(means)
    return over_repeats and over_repeats.beside(estimate([_mean(own) for own in gaps.values()]))


def _whole(results: Results) -> dict[str, dict[object, list[Cell]]]:
    """By defence and seed the cells of a cross-validation that has all of its folds."""
    cells = [cell for cell in results.finished.cells if fold_of(cell) is not None and curve(cell)]
    wanted = {fold_of(cell) for cell in cells}
    found: dict[str, dict[object, list[Cell]]] = {}
    for cell in cells:
        found.setdefault(cell.label("defence"), {}).setdefault(cell.labels.get("seed"), []).append(cell)
    whole = {
        arm: {seed: of for seed, of in seeds.items() if {fold_of(c) for c in of} == wanted}
        for arm, seeds in found.items()
    }
    return {arm: seeds for arm, seeds in whole.items() if seeds}


def _by_user(cell: Cell) -> dict[str, float]:
    """Each user's own accuracy after its last round."""
    return {r.client: r.value for r in cell.readings if r.measure == "accuracy" and r.client is not None}


def fold_of(cell: Cell) -> object | None:
    """Which fold of a cross-validation a cell is; None for one that is none."""
    named = FOLDED.fullmatch(str(cell.labels.get("scenario", "")))
    return named[1] if named else cell.labels.get(FOLD)


def unfolded(results: Results) -> Results:
    """Without the cells of a cross-validation, where there are others."""
    kept = tuple(cell for cell in results.cells if fold_of(cell) is None)
    return replace(results, cells=kept) if kept else results


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


TABLES: Tables = {
    "fedper/fig2": figure_2,
    "fedper/fig3": figure_3,
    "fedper/fig4": figure_4,
    "fedper/fig5": figure_5,
    "fedper/fig6": figure_6,
    "fedper/rounds": rounds_to_goal,
    "fedper/frontier": frontier,
    "fedper/planted": planted,
    "fedper/folds": folds,
}


def share(values: Sequence[float]) -> Estimate | None:
    """The mean of shares over seeds, its interval within 0 and 1."""
    return over_seeds(measure_of("accuracy"), values)


def _arms(results: Results) -> dict[str, Results]:
    """Finished cells by what tells them apart besides the seed, in the study's order."""
    results = unfolded(results)
    values = {name: {cell.label(name) for cell in results.cells} for name in results.labels}
    varied = [name for name in results.labels if name not in ("seed", "defence") and len(values[name]) > 1]
    arms = results.finished.by("defence", *varied)
    return {" ".join(map(str, key)) if varied else str(key): some for key, some in arms.items()}


def curve(cell: Cell) -> list[float]:
    """Mean accuracy over users, round by round."""
    return [r.value for r in cell.readings if r.measure == "accuracy" and r.client is None]


def _mean_curve(cells: Sequence[Cell]) -> list[float]:
    """Over seeds; one that stopped early counts with its last value."""
    curves = [c for c in map(curve, cells) if c]
    longest = max((len(c) for c in curves), default=0)
    return [sum(c[min(i, len(c) - 1)] for c in curves) / len(curves) for i in range(longest)]


def _quantiles(parts: Sequence[Sequence[Reading]]) -> list[float]:
    """Values in order, averaged over seeds place by place."""
    rows = [sorted(r.value for r in part) for part in parts if part]
    return [sum(values) / len(values) for values in zip(*rows, strict=False)] if rows else []


def _distribution(title: str, values: Mapping[str, Sequence[float]]) -> Table:
    users = max((len(v) for v in values.values()), default=0)
    rows = tuple(((i + 1) / users, *(v[i] if i < len(v) else None for v in values.values())) for i in range(users))
    return Table(title, ("share of users", *values), rows, "a share of users has at most this value; mean over seeds")


def _most_epochs(readings: Sequence[Reading]) -> list[Reading]:
    """Those of the largest number of epochs, where there are several."""
    groups = groups_of(readings, lambda r: r.about.get("epochs", 0))
    return groups[max(groups)] if groups else []


def _swept(results: Results) -> list[tuple[str, int]]:
    """Attacks with the local epochs that they were tried at."""
    tried = results.where(measure="auc", rule=PAPERS).every
    return list(dict.fromkeys((r.by, int(r.about["epochs"])) for r in tried if "epochs" in r.about))
