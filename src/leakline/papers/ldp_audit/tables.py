"""Paper 002's figures and tables from a run of `ldp-audit`: the paper's rules, the optimal ones, and bounds that hold.

"eq. (3)" columns are what the paper plots: the mean of ten point estimates, biased upwards. ">=" columns are 95 %
Clopper-Pearson bounds of the pooled counts. Figures come as the table of their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leakline.attacks.audit.crafters import SIX
from leakline.attacks.audit.ldp import RULES
from leakline.leakage.closed_forms import flip_epsilon
from leakline.results.stored import Stored, read_study
from leakline.results.table import Table

PRINTED = {
    ("benign", 4.0, "white"): 0.94,
    ("gradient flip", 4.0, "white"): 3.99,
    ("collusion", 4.0, "white"): 4.07,
}
"""The values that paper 002 gives in its text (MNIST); its figures have no numbers."""
PRINTED_CLIENTS = {1: 0.12, 2: 0.07, 4: 0.06, 10: 0.06}
"""Table 3 of paper 002 (MNIST, benign, epsilon not stated)."""
BOUNDS = "eq. (3): mean of the measurements' point estimates, biased upwards; >=: 95 % bound of the pooled counts"

Lines = Sequence[Mapping[str, Any]]


def cells(root: Path, scenario: str = "") -> Iterator[tuple[str, float, Lines]]:
    """Data set, epsilon and the readings of the game, of each finished cell."""
    for cell in read_study(root).finished:
        name = str(cell.labels.get("scenario", ""))
        epsilon = _epsilon(cell)
        lines = [line for line in cell.attacks if line["measure"] == "estimated-epsilon" and "about" in line]
        if epsilon is not None and lines and scenario in ("", name):
            yield name, epsilon, lines


def _epsilon(cell: Stored) -> float | None:
    stack = cell.federation.get("defences", [])
    value = stack[0].get("epsilon") if len(stack) == 1 and isinstance(stack[0], dict) else None
    return float(value) if value is not None else None


VARIED = ("norm", "step", "clients")
"""What single figures vary; lines of the others have none of it."""


def _found(lines: Lines, adversary: str, box: str, rule: str, **varied: float) -> tuple[Any, Any]:
    asked = {"adversary": adversary, "box": box, "rule": rule, **{key: varied.get(key) for key in VARIED}}
    fitting = (line for line in lines if asked == {key: line["about"].get(key) for key in asked})
    line = next(fitting, {})
    return line.get("value"), line.get("low")


def _values(found: Sequence[tuple[str, float, Lines]], key: str) -> list[float]:
    """What was played of one of `VARIED`."""
    return sorted({line["about"][key] for _, _, lines in found for line in lines if key in line["about"]})


def panels(root: Path, scenario: str, title: str) -> Table:
    """Figures 2, 5, 6 and 7: six adversaries, both boxes, every epsilon."""
    rows = []
    found = list(cells(root, scenario))
    for adversary in SIX:
        for _, epsilon, lines in sorted(found, key=lambda c: c[1]):
            white, white_low = _found(lines, adversary, "white", "cosine")
            best, best_low = _found(lines, adversary, "white", "optimal")
            black, black_low = _found(lines, adversary, "black", RULES[adversary])
            printed = PRINTED.get((adversary, epsilon, "white")) if scenario == "mnist" else None
            rows.append(
                (adversary, epsilon, printed, white, white_low, best, best_low, black, black_low)
            )  # fmt: skip
    columns = (
        "adversary", "epsilon", "paper, white", "white eq. (3)", "white >=", "optimal eq. (3)", "optimal >=",
        "black eq. (3)", "black >=",
    )  # fmt: skip
    note = f"{BOUNDS}; white: cosine rule (5); optimal: likelihood ratio; black: rules (4), (6), (7)"
    return Table(title, columns, tuple(rows), note)


def figure_2(root: Path) -> Table:
    """Paper 002, Figure 2 a-f: measured epsilon on MNIST."""
    return panels(root, "mnist", "Figure 2: measured epsilon, MNIST")


def figure_5(root: Path) -> Table:
    """Paper 002, Figure 5: measured epsilon on CIFAR-10."""
    return panels(root, "cifar10", "Figure 5: measured epsilon, CIFAR-10")


def figure_6(root: Path) -> Table:
    """Paper 002, Figure 6: measured epsilon on Fashion-MNIST."""
    return panels(root, "fashion-mnist", "Figure 6: measured epsilon, Fashion-MNIST")


def figure_7(root: Path) -> Table:
    """Paper 002, Figure 7: measured epsilon on SVHN."""
    return panels(root, "svhn", "Figure 7: measured epsilon, SVHN")


def _largest(root: Path) -> float:
    return max((epsilon for _, epsilon, _ in cells(root)), default=math.nan)


def summary(root: Path, title: str, scenarios: Callable[[str], bool], boxes: tuple[str, ...]) -> Table:
    """One row per adversary, one column per data set and box, at the largest epsilon."""
    top = _largest(root)
    chosen = [(name, lines) for name, epsilon, lines in cells(root) if epsilon == top and scenarios(name)]
    columns = ["adversary", *(f"{name} {box}" for name, _ in chosen for box in boxes)]
    rows = []
    for adversary in SIX:
        row: list[Any] = [adversary]
        for _, lines in chosen:
            rule = {"white": "cosine", "black": RULES[adversary], "optimal >=": "optimal"}
            for box in boxes:
                value, low = _found(lines, adversary, "black" if box == "black" else "white", rule[box])
                row.append(low if box == "optimal >=" else value)
        rows.append(tuple(row))
    return Table(title, tuple(columns), tuple(rows), f"epsilon = {top:g}; {BOUNDS}")


def figure_1b(root: Path) -> Table:
    """Paper 002, Figure 1b: what each adversary measures on MNIST at the largest epsilon."""
    return summary(root, "Figure 1b: measured epsilon, MNIST", lambda n: n == "mnist", ("white", "black", "optimal >="))


def figure_4(root: Path) -> Table:
    """Paper 002, Figure 4: the four data sets side by side, white and black box."""
    return summary(root, "Figure 4: four data sets", lambda n: True, ("white", "black", "optimal >="))


def figure_3(root: Path) -> Table:
    """Paper 002, Figure 3: a dummy gradient's norm, measured and in closed form."""
    found = sorted(cells(root, "mnist"), key=lambda c: c[1])
    ratios = _values(found, "norm")
    columns = ["norm / L"]
    for _, epsilon, _ in found:
        columns += [f"eps {epsilon:g} eq. (3)", f"eps {epsilon:g} >=", f"eps {epsilon:g} exact"]
    rows = []
    for ratio in ratios:
        row: list[Any] = [ratio]
        for _, epsilon, lines in found:
            row += [
                *_found(lines, "dummy gradient", "white", "cosine", norm=ratio), flip_epsilon(epsilon, ratio)
            ]  # fmt: skip
        rows.append(tuple(row))
    note = f"{BOUNDS}; exact: 2 artanh(r tanh(eps / 2))"
    return Table("Figure 3: effect of the gradient's norm", tuple(columns), tuple(rows), note)


def table_1(root: Path) -> Table:
    """Paper 002, Table 1: who may do what, and which rule decides."""
    crafter = dict(zip(SIX, ("nothing", "images", "parameters", "gradients", "gradients", "gradients"), strict=True))
    equation = {"loss": "(4)", "loss change": "(6)", "sign count": "(7), sign corrected"}
    rows = tuple(
        (name, crafter[name], "parameters" if name == "collusion" else "nothing", equation[RULES[name]], "(5)")
        for name in SIX
    )
    columns = ("adversary", "crafter alters", "server alters", "black box", "white box")
    return Table("Table 1: adversaries", columns, rows, "weakest first; beside (5) the likelihood ratio is played")


def table_2(root: Path) -> Table:
    """Paper 002, Table 2: the network, layer by layer, as it was built."""
    from leakline.attacks.audit.network import paper_002_cnn

    rows = [
        (name, str(layer), sum(p.numel() for p in layer.parameters()))
        for name, layer in paper_002_cnn((1, 28, 28), 10).named_children()
    ]
    rows.append(("in all", "", sum(r[2] for r in rows)))
    return Table("Table 2: network", ("layer", "what", "parameters"), tuple(rows), "for 28x28 grey images")


def table_3(root: Path) -> Table:
    """Paper 002, Table 3: the benign black box as the number of clients grows (MNIST)."""
    found = sorted(cells(root, "mnist"), key=lambda c: c[1])
    numbers = [int(n) for n in _values(found, "clients")]
    columns = ["clients", "paper"]
    for _, epsilon, _ in found:
        columns += [f"eps {epsilon:g} eq. (3)", f"eps {epsilon:g} >=", f"eps {epsilon:g} inverted >="]
    rows = []
    for n in numbers:
        row: list[Any] = [n, PRINTED_CLIENTS.get(n)]
        for _, _, lines in found:
            value, low = _found(lines, "benign", "black", "loss change", clients=n)
            row += [value, low, _found(lines, "benign", "black", "inverted", clients=n)[1]]
        rows.append(tuple(row))
    note = f"{BOUNDS}; rule (6); inverted: the box divides the public step out of the model's change"
    return Table("Table 3: number of clients, benign, MNIST", tuple(columns), tuple(rows), note)


def steps(root: Path) -> Table:
    """Gradient flip, black box: the server's step decides what rule (4) finds (not in the paper)."""
    found = sorted(cells(root, "mnist"), key=lambda c: c[1])
    times = _values(found, "step")
    columns = ("step, times the study's", *(f"eps {e:g} {what}" for _, e, _ in found for what in ("eq. (3)", ">=")))
    rows = tuple(
        (t, *(v for _, _, ls in found for v in _found(ls, "gradient flip", "black", "loss", step=t))) for t in times
    )
    return Table("Black box against the length of the server's step, MNIST", columns, rows, BOUNDS)


TABLES: dict[str, Callable[[Path], Table]] = {
    "ldp-audit/fig1b": figure_1b,
    "ldp-audit/fig2": figure_2,
    "ldp-audit/fig3": figure_3,
    "ldp-audit/fig4": figure_4,
    "ldp-audit/fig5": figure_5,
    "ldp-audit/fig6": figure_6,
    "ldp-audit/fig7": figure_7,
    "ldp-audit/table1": table_1,
    "ldp-audit/table2": table_2,
    "ldp-audit/table3": table_3,
    "ldp-audit/steps": steps,
}
"""All of them, to be joined to `leakline.report.tables.menu.TABLES`."""
