"""Figures 1b and 2a to 2d of paper 004 as numbers and as charts, from what each round wrote down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leakline.papers.intermediaries.arms import FIGURE, Arm, arms
from leakline.report.charts.chart import Chart, Series, lines_of
from leakline.report.papers import Tables
from leakline.results import Estimate, Results
from leakline.results.estimate import estimate
from leakline.results.settings import groups_of
from leakline.results.table import Table

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_SPAN = tuple(f"{q:.0%} quantile" for q in QUANTILES)


def figure_1b(results: Results) -> Table:
    """Figure 1b: noise level and diversity by the number of parts, and whether they follow the paper's laws."""
    rows = []
    for z, own in _by_z([a for a in _either(results, f"{FIGURE}-1b") if isinstance(a.parts, int)]).items():
        base = next((a for a in own if a.parts == 1), None)
        for arm in sorted(own, key=lambda a: int(a.parts)):
            xi, phi = _over_seeds(arm, "noise_level"), _over_seeds(arm, "diversity")
            v = int(arm.parts)
            laws = (("noise_level", 1 / v), ("diversity", v), ("ratio", 1 / v**2))
            first = ((_mean(base, name), law) for name, law in laws)
            law = (None if value is None else value * law for value, law in first)
            rows.append((z, v, xi, phi, _over_seeds(arm, "ratio"), *law))
    columns = (
        "z", "v", "noise level xi", "diversity phi", "ratio lambda", "xi / v of the unsplit (eq. 3)",
        "v phi of the unsplit (eq. 3)", "lambda / v^2 of the unsplit",
    )  # fmt: skip
    note = (
        "mean over rounds, then over seeds [95 % t-interval]; denominators are norms of the mean, as the released code "
        "has them: with the printed sums phi does not depend on v. Eq. 3 takes it that parts agree as much as clients "
        "do: where the mean gets shorter, xi and phi both rise above it and lambda does not"
    )
    return Table("Figure 1b: noise level and diversity by number of parts", columns, tuple(rows), note)


def figure_2a(results: Results) -> Table:
    """Figure 2a: the distribution of the ratio lambda over rounds, with the goal 1/N."""
    found = [a for a in arms(results) if a.z is not None and a.facts("ratio")]
    rows = tuple((a.strategy, a.z, a.name, *_quantiles(a.facts("ratio")), 1 / a.clients) for a in _ordered(found))
    note = "over all rounds and seeds; the paper's rule steers towards 1/N"
    return Table("Figure 2a: ratio lambda over rounds", ("strategy", "z", "arm", *_SPAN, "1/N"), rows, note)


def figure_2b(results: Results) -> Table:
    """Figure 2b: the standard deviation of cosine(update, aggregate) over rounds."""
    found = [a for a in arms(results) if a.z is not None and a.facts("cosine_spread")]
    rows = tuple(
        (a.strategy, a.z, a.name, *_quantiles(a.facts("cosine_spread")), _over_seeds(a, "cosine_spread"))
        for a in _ordered(found)
    )
    note = (
        "quantiles over all rounds and seeds; mean over rounds, then over seeds. Cosines of clipped updates with their "
        "mean before noise: of v N updates each makes up 1/(v N) of the mean, so cosines fall with v by that alone"
    )
    columns = ("strategy", "z", "arm", *_SPAN, "mean")
    return Table("Figure 2b: spread of cosines with the aggregate", columns, rows, note)


def figure_2c(results: Results) -> Table:
    """Figure 2c: utility by the number of clients, the test data unchanged."""
    found = [a for a in arms(results, f"{FIGURE}-2c") if a.z is not None]
    measure = _headline(found)
    names = list(dict.fromkeys(a.name for a in found))
    rows = []
    for clients in sorted({a.clients for a in found}):
        here = {a.name: a for a in found if a.clients == clients}
        rows.append((clients, *(here[n].utility(measure) if n in here else None for n in names)))
    note = "percent, mean over seeds ± standard deviation [95 % t-interval, cut at 0 and 100]; last round"
    return Table(f"Figure 2c: {measure} by number of clients", ("clients", *names), tuple(rows), note)


def figure_2d(results: Results) -> Table:
    """Figure 2d: the number of parts by round, and its largest step from one round to the next."""
    found = [a for a in _ordered(arms(results)) if isinstance(a.parts, str)]
    names = [f"{a.strategy} {a.name}" for a in found]
    longest = max((len(facts) for a in found for facts in a.rounds), default=0)
    rows: list[tuple[object, ...]] = []
    for i in range(longest):
        rows.append((i + 1, *(_at(a, i) for a in found)))
    rows.append(("largest step", *(max((_step(facts) for facts in map(_course, a.rounds)), default=0) for a in found)))
    note = "mean over seeds; the paper says that v never changes by more than one in its training, but once"
    return Table("Figure 2d: parts by round", ("round", *names), tuple(rows), note)


FIGURES: Tables = {
    "intermediaries/1b": figure_1b,
    "intermediaries/2a": figure_2a,
    "intermediaries/2b": figure_2b,
    "intermediaries/2c": figure_2c,
    "intermediaries/2d": figure_2d,
}


def charts(results: Results) -> dict[str, Chart]:
    """The figures."""
    found: dict[str, Chart] = {}
    for z, rows in groups_of(figure_1b(results).rows, lambda row: row[0]).items():
        lines = lines_of(Table("", ("v", "xi", "phi"), tuple(row[1:4] for row in rows)))
        title = f"Figure 1b: noise level and diversity, z = {z:g}"
        found[f"fig1b-{z:g}"] = Chart(title, "parts v", "xi, phi", tuple(lines))
    for key, make, title, y in (
        ("2a", figure_2a, "ratio lambda", "lambda"), ("2b", figure_2b, "spread of cosines", "standard deviation"),
    ):  # fmt: skip
        series = [_box(str(row[2]), i, row) for i, row in enumerate(make(results).rows)]
        note = "median and middle half over rounds"
        found[f"fig{key}"] = Chart(f"Figure {key}: {title}", "arm", y, tuple(series), kind="points", note=note)
    table = figure_2c(results)
    found["fig2c"] = Chart(table.title, "clients", "percent", tuple(lines_of(table)), y_range=(0.0, 100.0))
    table = figure_2d(results)
    found["fig2d"] = Chart(table.title, "round", "parts v", tuple(lines_of(table)))
    return found


def _either(results: Results, aside: str) -> list[Arm]:
    """The scenario made for a figure, or else the arms of Table 1."""
    return arms(results, aside) or [a for a in arms(results) if a.z is not None]


def _by_z(found: Sequence[Arm]) -> dict[float, list[Arm]]:
    groups = groups_of((arm for arm in found if arm.z is not None), lambda arm: arm.z)
    return {z: same for z, same in sorted(groups.items()) if len(same) > 1}


def _ordered(found: Sequence[Arm]) -> list[Arm]:
    return sorted(found, key=lambda a: (a.strategy, a.z or 0.0, str(a.parts) != "1", str(a.parts)))


def _over_seeds(arm: Arm, name: str) -> Estimate | None:
    means = [[f[name] for f in facts if name in f] for facts in arm.rounds]
    return estimate([sum(m) / len(m) for m in means if m])


def _mean(arm: Arm | None, name: str) -> float | None:
    found = None if arm is None else _over_seeds(arm, name)
    return None if found is None else found.mean


def _quantiles(values: Sequence[float]) -> list[float]:
    return [float(q) for q in np.quantile(values, QUANTILES)]


def _course(facts: Sequence[object]) -> list[float]:
    return [f["parts"] for f in facts if isinstance(f, dict) and "parts" in f]


def _step(course: Sequence[float]) -> float:
    return max((abs(b - a) for a, b in zip(course, course[1:], strict=False)), default=0.0)


def _at(arm: Arm, i: int) -> float | None:
    values = [course[i] for course in map(_course, arm.rounds) if i < len(course)]
    return sum(values) / len(values) if values else None


def _headline(found: Sequence[Arm]) -> str:
    has = {r.measure for a in found for c in a.cells for r in c.readings}
    return next((m for m in ("dice", "auc_binary", "auc_micro", "accuracy") if m in has), "dice")


def _box(name: str, style: int, row: Sequence[float]) -> Series:
    """The median and the middle half of a row of quantiles, each arm at its own place."""
    place = (float(style + 1),)
    return Series(name, style, place, (row[5],), (row[4],), (row[6],), place, place)
