"""ROC curves from what attacks wrote down: true positives at several rates of false ones, linear and log-log.

Attacks write ``tpr`` at a grid of rates (``about`` has fpr), with exact intervals; a curve joins those of one rule. The
log-log form (Carlini et al. 2022, "Membership inference attacks from first principles") shows the few people who can be
named with certainty, which an AUC hides.
"""

from __future__ import annotations

from leakline.leakage.brief import brief
from leakline.readings import rule_of
from leakline.report.charts.chart import Chart, Series, where_of
from leakline.results import Results, Setting
from leakline.results.settings import Leak

FLOOR = 1e-3
"""Where a log axis begins: a rate of zero is drawn there."""


def roc(results: Results, every: bool = True) -> list[Chart]:
    """True against false positives of every attack that wrote at least two such points; linear, then log-log.

    Unless ``every`` rule is wanted, of each attack the strongest.
    """
    leaks = [leak for setting in results.settings for leak in setting.leaks]
    shorts = {one.by: one for one in brief(leaks, lambda leak: leak.estimate.mean, results.measure)}
    rules: dict[tuple[str, str, str], list[tuple[Setting, list[tuple[float, Leak]]]]] = {}
    for setting in results.settings:
        mine: dict[tuple[str, str], list[tuple[float, Leak]]] = {}
        for leak in (*setting.leaks, *setting.points):
            fpr = leak.about.get("fpr")
            if leak.measure == "tpr" and isinstance(fpr, int | float) and 0 <= fpr <= 1:
                mine.setdefault((leak.by, rule_of(leak.about)), []).append((float(fpr), leak))
        for (by, rule), points in mine.items():
            wanted = every or by not in shorts or shorts[by].rule == rule
            if wanted and len({fpr for fpr, _ in points}) > 1:
                rules.setdefault((by, rule, results.place(setting.labels)), []).append(
                    (setting, sorted(points, key=_fpr))
                )
    charts = []
    for (by, rule, place), found in rules.items():
        name = f"{by}{f' ({rule})' if rule else ''}"
        where = {k: v for k, v in where_of(results, found[0][0]).items() if k != "defence"} | {"attack": by}
        note = "points: the rates that the attack wrote down; band: their intervals; dotted: blind guessing"
        if not every and by in shorts and shorts[by].rules > 1:
            note += f"; the strongest of {shorts[by].rules} rules, the others by: leakline export --figure roc"
        for log in (False, True):
            series = tuple(_curve(results, setting, points, log) for setting, points in found)
            charts.append(
                Chart(
                    f"ROC{', log-log' if log else ''}: {name}, {place}", "false positives", "true positives", series,
                    log_x=log, log_y=log, diagonal=True, note=note, where=where, y_range=None if log else (0.0, 1.0),
                )
            )  # fmt: skip
    return charts


def _fpr(point: tuple[float, Leak]) -> float:
    return point[0]


def _curve(results: Results, setting: Setting, points: list[tuple[float, Leak]], log: bool) -> Series:
    """One defence; a linear curve also gets its ends (0, 0) and (1, 1), which every score passes through."""
    x = [fpr for fpr, _ in points]
    y = [leak.estimate.mean for _, leak in points]
    spans = [_span(leak) for _, leak in points]
    low, high = [a for a, _ in spans], [b for _, b in spans]
    if not log:
        x, y, low, high = [0.0, *x, 1.0], [0.0, *y, 1.0], [0.0, *low, 1.0], [0.0, *high, 1.0]
    else:
        x, y, low, high = ([max(v, FLOOR) for v in values] for values in (x, y, low, high))
    return Series(
        setting.defence, results.defences.index(setting.defence), tuple(x), tuple(y), tuple(low), tuple(high),
        where=(where_of(results, setting),),
    )  # fmt: skip


def _span(leak: Leak) -> tuple[float, float]:
    """The interval of the runs themselves: over few seeds, rates near zero have no honest t-interval."""
    mean = leak.estimate.mean
    return max(leak.low if leak.low is not None else mean, 0.0), min(leak.high if leak.high is not None else mean, 1.0)
