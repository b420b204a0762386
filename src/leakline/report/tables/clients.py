"""Who is worst off: readings that belong to one client, as a table of the most exposed and as distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from leakline.report.charts.chart import Chart, Series, where_of
from leakline.results import Estimate, Results, Setting
from leakline.results.cell import last
from leakline.results.estimate import estimate
from leakline.results.settings import qualified
from leakline.results.table import Table

Values = dict[str, Estimate]


def clients(results: Results) -> Table:
    """Which client leaks most, and which is served worst, under every setting."""
    rows = []
    for setting, by, measure, better, values in _per_client(results):
        sign = 1 if better == "higher" else -1
        worst = min(values, key=lambda name: sign * values[name].mean)
        middle = median(v.mean for v in values.values())
        place = (*(setting.labels.get(a, "") for a in results.axes), setting.defence)
        rows.append((*place, by, measure, worst, values[worst], middle, len(values)))
    columns = (*results.axes, "defence", "attack", "measure", "worst client", "its value", "median client", "clients")
    note = (
        "for an attack, worst is the client that leaks most; for utility, the one that is served worst. The worst of "
        "many looks bad by chance alone: compare it with the median and with other seeds"
    )
    return Table("The client that is worst off", columns, tuple(rows), note)


def distribution(results: Results) -> list[Chart]:
    """How a measure is spread over clients: the share of clients at or below each value, one line per defence."""
    found: dict[tuple[str, str], list[Series]] = {}
    titles: dict[tuple[str, str], dict[str, str]] = {}
    for setting, by, measure, _, values in _per_client(results):
        if measure == results.headline or by != "utility":
            x = sorted(v.mean for v in values.values())
            y = [(i + 1) / len(x) for i in range(len(x))]
            where = where_of(results, setting)
            key = (results.place(setting.labels), qualified(by, measure))
            series = Series(
                setting.defence, results.defences.index(setting.defence), (x[0], *x), (0.0, *y), where=(where,)
            )
            found.setdefault(key, []).append(series)
            titles[key] = {k: v for k, v in where.items() if k != "defence"}
            titles[key] |= {} if by == "utility" else {"attack": by}
    means = "; clients' means over seeds" if results.seeds > 1 else ""
    note = f"share of clients at or below a value{means}"
    return [
        Chart(
            f"Spread over clients: {name}, {place}", name.partition(".")[2] or name, "share of clients", tuple(series),
            note=note, y_range=(0.0, 1.0), steps=True, where=titles[place, name],
        )
        for (place, name), series in found.items()
    ]  # fmt: skip


def _per_client(results: Results) -> Iterator[tuple[Setting, str, str, str, Values]]:
    """Every measure that a setting has for two clients or more, after the last round: (by, measure, better, values)."""
    for setting in results.settings:
        groups: dict[tuple[str, str, str], dict[str, list[float]]] = {}
        for cell in setting.cells:
            for r in (*last([r for r in cell.readings if r.client]), *cell.attacks):
                if r.client and math.isfinite(r.value):
                    mine = groups.setdefault((r.by, r.label, results.measure(r.measure).better), {})
                    mine.setdefault(r.client, []).append(float(r.value))
        for (by, measure, better), clients_ in groups.items():
            values = {name: e for name, found in clients_.items() if (e := estimate(found)) is not None}
            if len(values) > 1:
                yield setting, by, measure, better, values
