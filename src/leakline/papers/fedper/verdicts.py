"""What became of paper 003's numbers and of its conclusions."""

from __future__ import annotations

from collections.abc import Mapping

from leakline.papers.fedper import printed
from leakline.papers.fedper.tables import GOAL, PAPERS, curve, share
from leakline.report.verdicts import Row, Verdicts, claim_row, number_row, otherwise
from leakline.results import Estimate, Results
from leakline.results.estimate import estimate

NOISES = ("noise-variance", "noise-std")
"""N(0, 0.01) read as a variance and as a standard deviation."""
AS_PRINTED = "-as-in-paper"
"""What attacks with the paper's own server are named by."""
ABSENT = "the data set needs a registration and was not run"


def verdicts(stores: Mapping[str, Results]) -> Verdicts:
    """Utility, speed, attribute and membership inference on MotionSense; MobiAct."""
    results = stores["fedper"].finished
    other = otherwise(results, "motionsense", rounds=200, epochs=10, learning_rate=0.001)
    users = max((len(cell.task.get("clients", ())) or len(cell.holders) for cell in results.cells), default=None)
    accuracy = {arm: _by_seed(some) for arm, some in results.by("defence").items()}
    return {
        "Section 3.2: utility, MotionSense": [
            claim_row(
                "FedPer is more accurate than plain averaging (difference)", f"+{printed.GAIN['MotionSense']:g} points",
                _less(accuracy, "fedper", "vanilla"), users,
            ),
            *(
                claim_row(
                    f"noise costs accuracy ({noise}: plain averaging less noise)",
                    f"{printed.NOISE_LOSS['MotionSense']:g} points", _less(accuracy, "vanilla", noise), users,
                )
                for noise in NOISES
            ),
        ],
        "Figure 3: rounds to 90 % accuracy, MotionSense": [
            number_row(f"{arm}, rounds to 90 %", paper, _rounds(results.where(defence=arm)), users, other)
            for arm, paper in printed.ROUNDS.items()
        ],
        "Figures 4 and 5: attribute inference, MotionSense": _attributes(results, users, other),
        "Figure 6: who took part, MotionSense": _membership(results, users, other),
        "MobiAct": [
            Row("FedPer is more accurate than plain averaging", f"+{printed.GAIN['MobiAct']:g} points", note=ABSENT),
            Row("noise costs accuracy", f"{printed.NOISE_LOSS['MobiAct']:g} points", note=ABSENT),
            Row("attribute and membership inference", "Figures 4 to 6", note=ABSENT),
        ],
    }  # fmt: skip


def _attributes(results: Results, users: int | None, other: str) -> list[Row]:
    rows = []
    for attack in ("gender", "bmi"):
        found = {arm: _right(some, attack) for arm, some in results.by("defence").items()}
        if attack == "gender":
            ours = share(list(found.get("vanilla", {}).values()))
            rows.append(number_row("gender from plain updates, accuracy", printed.GENDER, ours, users, other))
        drop = _less(found, "vanilla", "fedper")
        rows.append(claim_row(f"FedPer lowers the accuracy of guessing {attack} (by)", printed.DROP, drop, users))
    return rows


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


def _rounds(results: Results) -> Estimate | str | None:
    curves = [c for c in map(curve, results.cells) if c]
    there = [next((i + 1 for i, v in enumerate(c) if v >= GOAL), None) for c in curves]
    if not curves or any(r is None for r in there):
        return f"{sum(r is not None for r in there)} of {len(curves)} seeds got there" if curves else None
    return estimate([float(r) for r in there if r is not None])
