"""Who is worst off: readings that belong to one client, as a table of the most exposed and as distributions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from leakline.readings import label_of
from leakline.report.charts.chart import Chart, Series, where_of
from leakline.results.frames import Estimate, estimate, qualified
from leakline.results.pooled import Pooled, Setting, pool
from leakline.results.stored import read_study
from leakline.results.table import Table

Values = dict[str, Estimate]


def clients(root: Path) -> Table:
    """Which client leaks most, and which is served worst, under every setting."""
    return clients_of(pool(read_study(root)))


def clients_of(pooled: Pooled) -> Table:
    """`clients` of settings pooled already."""
    rows = []
    for setting, by, measure, better, values in _per_client(pooled):
        sign = 1 if better == "higher" else -1
        worst = min(values, key=lambda name: sign * values[name].mean)
        middle = median(v.mean for v in values.values())
        place = (*(setting.labels.get(a, "") for a in pooled.axes), setting.defence)
        rows.append((*place, by, measure, worst, values[worst], middle, len(values)))
    columns = (*pooled.axes, "defence", "attack", "measure", "worst client", "its value", "median client", "clients")
    note = (
        "for an attack, worst is the client that leaks most; for utility, the one that is served worst. The worst of "
        "many looks bad by chance alone: compare it with the median and with other seeds"
    )
    return Table("The client that is worst off", columns, tuple(rows), note)


def distribution(root: Path) -> list[Chart]:
    """How a measure is spread over clients: the share of clients at or below each value, one line per defence."""
    return distribution_of(pool(read_study(root)))


def distribution_of(pooled: Pooled) -> list[Chart]:
    """`distribution` of settings pooled already."""
    found: dict[tuple[str, str], list[Series]] = {}
    titles: dict[tuple[str, str], dict[str, str]] = {}
    for setting, by, measure, _, values in _per_client(pooled):
        if measure == pooled.headline or by != "utility":
            x = sorted(v.mean for v in values.values())
            y = [(i + 1) / len(x) for i in range(len(x))]
            where = where_of(pooled, setting)
            key = (pooled.place(setting.labels), qualified(by, measure))
            series = Series(
                setting.defence, pooled.defences.index(setting.defence), (x[0], *x), (0.0, *y), where=(where,)
            )
            found.setdefault(key, []).append(series)
            titles[key] = {k: v for k, v in where.items() if k != "defence"}
            titles[key] |= {} if by == "utility" else {"attack": by}
    note = "share of clients at or below a value; clients' means over seeds"
    return [
        Chart(
            f"Spread over clients: {name}, {place}", name.partition(".")[2] or name, "share of clients", tuple(series),
            note=note, y_range=(0.0, 1.0), steps=True, where=titles[place, name],
        )
        for (place, name), series in found.items()
    ]  # fmt: skip


def _per_client(pooled: Pooled) -> Iterator[tuple[Setting, str, str, str, Values]]:
    """Every measure that a setting has for two clients or more, after the last round: (by, measure, better, values)."""
    for setting in pooled.settings:
        groups: dict[tuple[str, str, str], dict[str, list[float]]] = {}
        for cell in setting.cells:
            for line in (*_last([r for r in cell.readings if r.get("client")]), *cell.attacks):
                if line.get("client") and math.isfinite(line["value"]):
                    by, better = str(line.get("by", "utility")), str(pooled.study.measure(line["measure"]).better)
                    mine = groups.setdefault((by, label_of(line["measure"], line.get("about")), better), {})
                    mine.setdefault(str(line["client"]), []).append(float(line["value"]))
        for (by, measure, better), clients_ in groups.items():
            values = {name: e for name, found in clients_.items() if (e := estimate(found)) is not None}
            if len(values) > 1:
                yield setting, by, measure, better, values


def _last(lines: Sequence[Any]) -> list[Any]:
    ends: dict[str, int] = {}
    for line in lines:
        ends[line["measure"]] = max(ends.get(line["measure"], -1), line.get("round", -1))
    return [line for line in lines if line.get("round", -1) == ends[line["measure"]]]
