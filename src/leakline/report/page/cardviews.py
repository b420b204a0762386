"""Privacy cards for the page: one per defence and promise, whatever number of seeds and settings it speaks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leakline.cards import with_effort
from leakline.leakage.brief import brief
from leakline.report.charts.chart import where_of
from leakline.report.page.glossary import meanings
from leakline.report.page.short import short
from leakline.report.page.words import VERDICTS, places, verdict_of
from leakline.report.tables.menu import over_seeds
from leakline.results import Results, Setting
from leakline.results.settings import Leak, utility_of
from leakline.results.table import Table, shown
from leakline.text import number, tidy
from leakline.utility.baseline import beside


@dataclass(frozen=True)
class CardView:
    """A card as a page shows it: lines of the same kind are gathered."""

    defence: str
    where: str
    verdict: str
    verdict_text: str
    warnings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    """What must be read, in at most a screen's lines."""
    rest: tuple[tuple[str, tuple[str, ...]], ...]
    words: tuple[tuple[str, str], ...]
    """What the words on the card mean."""
    table: Table | None
    wheres: tuple[dict[str, str], ...] = ()
    """The labels of each setting that the card speaks for."""


def card_views(results: Results) -> list[CardView]:
    """Cards in the order of the study; settings with the same promises share one."""
    groups: dict[Any, list[Setting]] = {}
    for setting in results.settings:
        groups.setdefault((setting.defence, setting.card.promises), []).append(setting)
    order = {d: i for i, d in enumerate(results.defences)}
    return [_view(results, d, found) for (d, _), found in sorted(groups.items(), key=lambda item: order[item[0][0]])]


def _view(results: Results, defence: str, settings: list[Setting]) -> CardView:
    lines: dict[str, list[str]] = {}
    for label, text in settings[0].card.rows():
        if label not in ("!", "measured", "dropped", "utility"):
            # Of several promises, each is named in its line, so that they stand below each other.
            name, _, whose = label.partition(" (")
            lines.setdefault(name, []).append(f"{whose.removesuffix(')')}: {text}" if whose else text)
    if any(s.varied for s in settings):
        lines.setdefault("seeds", []).append("the promise differed between seeds; this is the weakest")
    for s in settings:
        place = f"{results.place(s.labels)}: " if len(settings) > 1 else ""
        lines.setdefault("measured", []).extend(place + bound.text for bound in s.measured)
    lines["measured"] = lines.get("measured") or ["no audit was run"]
    if len(settings) == 1:
        lines["attacks"] = _leaks(settings[0]) or ["no attack was tried"]
        if settings[0].utility is not None:
            lines["utility"] = _utility(results, settings[0])
    for s in settings:
        for text in s.card.dropped:
            lines.setdefault("dropped", []).append(text)
    verdict = verdict_of(settings)
    flat = [(label, text) for label, texts in lines.items() for text in dict.fromkeys(texts)]
    shown, rest = short(flat)
    return CardView(
        defence, places(results, settings), verdict, VERDICTS[verdict],
        tuple(dict.fromkeys(text for s in settings for text in s.warnings)),
        _gathered(shown), _gathered(rest), tuple(meanings(results, [text for _, text in flat])),
        _table(results, settings) if len(settings) > 1 else None,
        tuple({tidy(k): tidy(v) for k, v in where_of(results, s).items()} for s in settings),
    )  # fmt: skip


def _gathered(rows: list[tuple[str, str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Rows with those of one label below each other."""
    lines: dict[str, list[str]] = {}
    for label, text in rows:
        lines.setdefault(label, []).append(text)
    return tuple((label, tuple(texts)) for label, texts in lines.items())


def _utility(results: Results, setting: Setting) -> list[str]:
    """The figures that people read first, each beside what a constant answer gets."""
    readings = setting.card.utility
    quoted = {r.measure: text for r, text in zip(readings, beside(readings), strict=True)} or {results.headline: ""}
    means = {name: utility_of(setting.cells, results.measure(name)) for name in quoted}
    return [f"{name} {shown(means[name])}" + (f"; {text}" if text else "") for name, text in quoted.items()]


def _leaks(setting: Setting) -> list[str]:
    found = []
    for one in brief(setting.leaks, _mean, setting.card.measure):
        told = [_leak(leak, _clearest(setting, leak)) for leak in one.shown]
        told += [f"{one.by}: {one.rest.replace('in the report', 'in the table of attacks')}"] if one.rest else []
        found += with_effort(told, one.by, one.shown[0].readings[0].about)
    return found


def _mean(leak: Leak) -> float:
    return leak.estimate.mean


def _clearest(setting: Setting, leak: Leak) -> str:
    """Of a mean over rebuilt images: the client whose are nearest, if nearer than a guess; page one speaks of it."""
    if leak.measure != "ssim":
        return ""
    every = [r for cell in setting.cells for r in cell.attacks if r.by == leak.by and r.measure == "ssim"]
    above = [r for r in every if r.client is not None and r.chance is not None and r.value > r.chance]
    best = max(above, key=lambda r: r.value, default=None)
    return (
        "" if best is None else f"; most for {best.client}: {number(best.value, 3)}, a guess {number(best.chance, 3)}"
    )


def _leak(leak: Leak, clearest: str = "") -> str:
    chance = f"; chance {leak.chance:.2g}" if leak.chance is not None else ""
    p = f"; p = {leak.p:.2g}" if leak.p is not None else ""
    verdict = "; cannot be told from guessing" if leak.is_chance and not clearest else ""
    return f"{leak.by}: {leak.label} {_with_interval(leak)}{chance}{p}{clearest}{verdict}"


def _with_interval(leak: Leak) -> str:
    """A leak's mean, its spread over seeds, and the interval by which it is judged."""
    low, high = leak.interval
    spread = f" ± {number(leak.estimate.sd, 3)}" if leak.estimate.sd is not None else ""
    span = f" [{number(low, 3)}, {number(high, 3)}]" if low is not None and high is not None else ""
    return f"{number(leak.estimate.mean, 3)}{spread}{span}"


def _table(results: Results, settings: list[Setting]) -> Table:
    every = [leak for s in settings for leak in s.leaks]
    names = list(dict.fromkeys(leak.name for one in brief(every, _mean, results.measure) for leak in one.shown))
    rows = []
    for s in settings:
        leaks = {leak.name: leak.estimate for leak in s.leaks}
        rows.append((*(s.labels.get(a, "") for a in results.axes), s.utility, *(leaks.get(n) for n in names)))
    columns = (*results.axes, results.headline or "utility", *names)
    return Table("Measured, by setting", columns, tuple(rows), over_seeds(results))
