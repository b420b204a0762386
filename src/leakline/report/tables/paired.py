"""Differences in utility, seed by seed: what a defence costs, or what one arm of a study has above another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leakline.errors import LeaklineError
from leakline.results import Results, Setting
from leakline.results.estimate import Estimate, estimate
from leakline.results.table import Table

NOTE = (
    "mean of the differences of runs with the same seed, ± their standard deviation [95 % t-interval over seeds]; "
    "the runs of one seed share data and split"
)


def paired(results: Results) -> Table:
    """What each defence costs: its headline less that without any defence, paired by seed."""
    found = []
    for setting in results.settings:
        for base in results.settings:
            if base.undefended and not setting.undefended and base.elsewhere == setting.elsewhere:
                found.append((setting, base.defence, base))
    return _table(results, f"What defences cost: {_headline(results)} less that without a defence", found)


def paired_against(results: Results, wanted: str) -> Table:
    """The headline of every setting less that of the setting with a label (``scenario=plain``), paired by seed.

    Both share their other labels and the data set by its name.
    """
    label, equals, value = wanted.partition("=")
    known = {str(s.labels[label]) for s in results.settings if label in s.labels}
    if not equals or value not in known:
        raise LeaklineError(
            f"no finished cell has the label {wanted!r}",
            "--against",
            f"LABEL=VALUE, with {label} one of: {', '.join(sorted(known))}" if known else "LABEL=VALUE",
        )
    found = []
    for base in results.settings:
        if str(base.labels.get(label)) == value:
            found += [(other, value, base) for other in results.settings if _alike(other, base, label)]
    return _table(results, f"{_headline(results)}, less that of {label} = {value}", found)


def _headline(results: Results) -> str:
    return results.headline or "no utility measure"


def _alike(setting: Setting, base: Setting, label: str) -> bool:
    """Whether two settings differ in one label, which is that one, and are of the same data set."""

    def rest(labels: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in labels.items() if k != label}

    same = rest(setting.labels) == rest(base.labels) and _task(setting) == _task(base)
    return same and setting.labels.get(label) != base.labels.get(label)


def _task(setting: Setting) -> Any:
    return setting.cells[0].federation.get("task", {}).get("name")


def _table(results: Results, title: str, found: list[tuple[Setting, str, Setting]]) -> Table:
    columns = (*results.axes, "defence", "less", _headline(results), "there", "difference", "seeds")
    rows = []
    for setting, name, base in found:
        place = (*(setting.labels.get(axis, "") for axis in results.axes), setting.defence)
        apart = difference(setting, base, results.headline or "")
        rows.append((*place, name, setting.utility, base.utility, apart, apart.seeds if apart else 0))
    return Table(title, columns, tuple(rows), NOTE)


def difference(setting: Setting, base: Setting, measure: str) -> Estimate | None:
    """The mean difference over the seeds that both have; None where they share none."""
    here, there = dict(_by_seed(setting, measure)), dict(_by_seed(base, measure))
    return estimate([here[seed] - there[seed] for seed in here if seed in there])


def _by_seed(setting: Setting, measure: str) -> Iterator[tuple[Any, float]]:
    for cell in setting.cells:
        values = [float(r.value) for r in cell.final(measure)]
        if values:
            yield cell.labels.get("seed"), sum(values) / len(values)
