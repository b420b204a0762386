"""Privacy cards for the page: one per defence and promise, whatever number of seeds and settings it speaks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leakline.report.render import Table, shown
from leakline.report.settings import Leak, Pooled, Setting
from leakline.report.tables import SEEDS
from leakline.report.words import VERDICTS, places, verdict_of


@dataclass(frozen=True)
class CardView:
    """A card as a page shows it: lines of the same kind are gathered."""

    defence: str
    where: str
    verdict: str
    verdict_text: str
    warnings: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    table: Table | None


def card_views(pooled: Pooled) -> list[CardView]:
    """Cards in the order of the study; settings with the same promises share one."""
    groups: dict[Any, list[Setting]] = {}
    for setting in pooled.settings:
        groups.setdefault((setting.defence, setting.card.promises), []).append(setting)
    order = {d: i for i, d in enumerate(pooled.defences)}
    return [_view(pooled, d, found) for (d, _), found in sorted(groups.items(), key=lambda item: order[item[0][0]])]


def _view(pooled: Pooled, defence: str, settings: list[Setting]) -> CardView:
    lines: dict[str, list[str]] = {}
    for label, text in settings[0].card.rows():
        if label not in ("!", "measured", "dropped"):
            lines.setdefault(label, []).append(text)
    if any(s.varied for s in settings):
        lines.setdefault("seeds", []).append("the promise differed between seeds; this is the weakest")
    for s in settings:
        place = f"{pooled.place(s.labels)}: " if len(settings) > 1 else ""
        lines.setdefault("measured", []).extend(place + text for text in _measured(s))
    lines["measured"] = lines.get("measured") or ["no audit was run"]
    if len(settings) == 1:
        lines["attacks"] = [_leak(leak) for leak in settings[0].leaks] or ["no attack was tried"]
        if settings[0].utility is not None:
            lines["utility"] = [f"{pooled.headline} {shown(settings[0].utility)}"]
    for s in settings:
        for text in s.card.dropped:
            lines.setdefault("dropped", []).append(text)
    warnings = [t for s in settings for t in ((s.card.stamp,) if s.card.stamp else ()) + s.card.broken]
    verdict = verdict_of(settings)
    return CardView(
        defence, places(pooled, settings), verdict, VERDICTS[verdict],
        tuple(dict.fromkeys(warnings)), tuple((k, tuple(dict.fromkeys(v))) for k, v in lines.items()),
        _table(pooled, settings) if len(settings) > 1 else None,
    )  # fmt: skip


def _measured(setting: Setting) -> list[str]:
    found = []
    for measure, by, low, high, trials in setting.measured:
        span = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g} (over seeds)"
        found.append(f"{measure.replace(':', ' per ')} >= {span} ({by}, {trials or '?'} trials)")
    return found


def _leak(leak: Leak) -> str:
    chance = f"; chance {leak.chance:.2g}" if leak.chance is not None else ""
    verdict = {True: "; cannot be told from guessing", False: "", None: ""}[leak.is_chance]
    return f"{leak.by}: {leak.measure} {shown(leak.estimate)}{chance}{verdict}"


def _table(pooled: Pooled, settings: list[Setting]) -> Table:
    names = list(dict.fromkeys(leak.name for s in settings for leak in s.leaks))
    rows = []
    for s in settings:
        leaks = {leak.name: leak.estimate for leak in s.leaks}
        rows.append((*(s.labels.get(a, "") for a in pooled.axes), s.utility, *(leaks.get(n) for n in names)))
    return Table("Measured, by setting", (*pooled.axes, pooled.headline or "utility", *names), tuple(rows), SEEDS)
