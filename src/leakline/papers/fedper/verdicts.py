"""What became of paper 003's numbers and of its conclusions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from leakline.papers.fedper import printed
from leakline.papers.fedper.tables import GOAL, PAPERS, crossed, curve, share, unfolded
from leakline.report.verdicts import REPRODUCED, Row, Verdicts, claim_row, number_row, otherwise
from leakline.results import Estimate, Results
from leakline.results.estimate import estimate

NOISES = ("noise-variance", "noise-std")
"""N(0, 0.01) read as a variance and as a standard deviation."""
AS_PRINTED = "-as-in-paper"
"""What attacks with the paper's own server are named by."""
PLAN = {"rounds": 200, "epochs": 10, "learning_rate": 0.001}
"""The paper's training."""
ABSENT = "the data set needs a registration: study fedper-mobiact"

Less = Callable[[str, str], Estimate | None]
"""How much more accurate one scheme is than another."""


def verdicts(stores: Mapping[str, Results]) -> Verdicts:
    """Utility, speed, attribute and membership inference on MotionSense; the same on MobiAct, where it was run."""
    every = stores["fedper"].finished
    results = unfolded(every)
    other, users = otherwise(results, "motionsense", **PLAN), _users(results)
    return {
        "Section 3.2: utility, MotionSense": [
            *_utility(_paired(results), "MotionSense", users),
            *_utility(partial(crossed, every), "MotionSense", users, ", cross-validated"),
        ],
        "Figure 3: rounds to 90 % accuracy, MotionSense": _speed(results, "MotionSense", users, other),
        "Figures 4 and 5: attribute inference, MotionSense": _attributes(results, users, other),
        "Figure 6: who took part, MotionSense": _membership(results, users, other),
        "MobiAct": _mobiact(stores["fedper-mobiact"].finished),
    }


def _mobiact(results: Results) -> list[Row]:
    """The paper's second data set: only cells that were trained on it count, never those of a stand-in."""
    there = replace(results, cells=tuple(c for c in results.cells if c.task.get("name") == "mobiact"))
    other, users = otherwise(there, "mobiact", **PLAN), _users(there)
    rows = [
        *_utility(_paired(there), "MobiAct", users),
        *_speed(there, "MobiAct", users, other),
        *(_drop(there, attack, users) for attack in ("gender", "bmi")),
        _drop(there, "took-part", users, "Figure 6, no number"),
    ]
    return rows if there.cells else [replace(row, note=ABSENT) for row in rows]


def _users(results: Results) -> int | None:
    return max((len(cell.task.get("clients", ())) or len(cell.holders) for cell in results.cells), default=None)


def _paired(results: Results) -> Less:
    """Accuracy after the last round of one scheme less another's, paired by seed."""
    found = {arm: _by_seed(some) for arm, some in results.by("defence").items()}
    return lambda one, other: _less(found, one, other)


def _utility(less: Less, data: str, users: int | None, how: str = "") -> list[Row]:
    readings = {"fedper": "FedPer", "fedper-2-upper": "FedPer with two private layers"}
    gain, loss = printed.GAIN[data], printed.NOISE_LOSS[data]
    return [
        *(
            _points(f"{name} is more accurate than plain averaging (difference{how})", gain, "+", less(arm, "vanilla"),
                    users)
            for arm, name in readings.items()
        ),
        *(
            _points(f"noise costs accuracy ({noise}: plain averaging less noise{how})", loss, "",
                    less("vanilla", noise), users)
            for noise in NOISES
        ),
    ]  # fmt: skip


def _points(what: str, paper: float, sign: str, ours: Estimate | None, users: int | None) -> Row:
    """A claim that something is above 0, which the paper gives in points: ours may have its sign and not its size."""
    row = claim_row(what, f"{sign}{paper:g} points", ours, users)
    if row.verdict != REPRODUCED or ours is None or ours.low is None or ours.high is None:
        return row
    return row if ours.low <= paper / 100 <= ours.high else replace(row, note="its sign: the paper's size is outside")


def _speed(results: Results, data: str, users: int | None, other: str) -> list[Row]:
    rows = []
    for arm, paper in printed.ROUNDS[data].items():
        curves = [c for c in map(curve, results.where(defence=arm).cells) if c]
        row = number_row(f"{arm}, rounds to 90 %", paper, _rounds(curves), users, other)
        rows.append(replace(row, seeds=len(curves) or None))
    return rows


def _attributes(results: Results, users: int | None, other: str) -> list[Row]:
    ours = share(list(_right(results.where(defence="vanilla"), "gender").values()))
    plain = number_row("gender from plain updates, accuracy", printed.GENDER, ours, users, other)
    return [plain, *(_drop(results, attack, users) for attack in ("gender", "bmi"))]


def _drop(results: Results, attack: str, users: int | None, paper: str = printed.DROP) -> Row:
    found = {arm: _right(some, attack) for arm, some in results.by("defence").items()}
    drop = _less(found, "vanilla", "fedper")
    return claim_row(f"FedPer lowers the accuracy of guessing {attack} (by)", paper, drop, users)


def _membership(results: Results, users: int | None, other: str) -> list[Row]:
    found = {arm: _right(some, "took-part") for arm, some in results.by("defence").items()}
    own = share(list(found.get("fedper", {}).values()))
    control = _right(results.where(defence="fedper"), "took-part-all-trained")
    alike = share(list(control.values()))
    return [
        number_row("accuracy under FedPer, strangers hold fresh private layers", printed.MEMBERSHIP, own, users, other),
        number_row("accuracy under FedPer, strangers hold trained ones", printed.MEMBERSHIP, alike, users, other),
        *(
            claim_row(
                f"lower than under noise ({noise} less FedPer)", "20 points", _less(found, noise, "fedper"), users
            )
            for noise in NOISES
        ),
    ]


def _right(results: Results, attack: str) -> dict[object, float]:
    """Accuracy of the paper's attacker by seed: its own server where that was played, at the most local epochs."""
    found = {}
    for cell in results.cells:
        named = {r.by for r in cell.attacks}
        by = f"{attack}{AS_PRINTED}" if f"{attack}{AS_PRINTED}" in named else attack
        own = [r for r in cell.attacks if r.by == by and r.measure == "right" and r.about.get("rule") == PAPERS]
        if own:
            best = max(own, key=lambda r: float(r.about.get("epochs", 0)))
            found[cell.labels.get("seed")] = float(best.value)
    return found


def _by_seed(results: Results) -> dict[object, float]:
    return {cell.labels.get("seed"): c[-1] for cell in results.cells if (c := curve(cell))}


def _less(found: Mapping[str, Mapping[object, float]], one: str, other: str) -> Estimate | None:
    """One less the other, paired by seed."""
    mine, theirs = found.get(one, {}), found.get(other, {})
    return estimate([value - theirs[seed] for seed, value in mine.items() if seed in theirs])


def _rounds(curves: Sequence[Sequence[float]]) -> Estimate | str | None:
    """The first round at the goal, over seeds; where a seed never got there, how many did."""
    there = [next((i + 1 for i, v in enumerate(c) if v >= GOAL), None) for c in curves]
    if not curves or any(r is None for r in there):
        return f"{sum(r is not None for r in there)} of {len(curves)} seeds got there" if curves else None
    return estimate([float(r) for r in there if r is not None])
