"""What a defence cost: how useful its model is beside that of no defence, in words and in short."""

from __future__ import annotations

from collections.abc import Sequence

from leakline.measures import Measure
from leakline.results import Results, Setting


def cost_words(results: Results, settings: Sequence[Setting]) -> list[str]:
    """The utility of one defence's settings against those without a defence, in sentences."""
    have = [s for s in settings if s.utility is not None]
    if not have or not results.headline:
        return ["How useful the model is was not measured."]
    text = f"{headline_name(results)} {utility_text(results, have)}"
    if all(s.undefended for s in have):
        said = f"{text}. This is the undefended federation that the others are compared with."
    elif not (lost := lost_text(results, have)):
        said = f"{text}. There is no undefended federation with the same settings to compare with."
    else:
        pairs = [results.baseline(s) for s in have]
        bases = [b.utility.mean for b in pairs if b is not None and b.utility is not None]
        said = f"{text}, against {_range(bases, results.measure(results.headline))} without a defence: {lost}."
    return [said, *_useless(results, have)]


def headline_name(results: Results) -> str:
    """The utility measure as a word at the start of a sentence."""
    name = results.headline.replace("_", " ") or "utility"
    return f"{name[:1].upper()}{name[1:]}"


def utility_text(results: Results, settings: Sequence[Setting]) -> str:
    """The range of utility over settings; "" if none was measured."""
    values = [s.utility.mean for s in settings if s.utility is not None]
    return _range(values, results.measure(results.headline)) if values else ""


def lost_text(results: Results, settings: Sequence[Setting]) -> str:
    """How much less useful than without a defence; "" where nothing can be compared."""
    lost = [
        (b.utility.mean - s.utility.mean) * (1 if results.better == "higher" else -1)
        for s, b in ((s, results.baseline(s)) for s in settings)
        if b is not None and b.utility is not None and s.utility is not None
    ]
    if not lost:
        return ""
    scale, unit = (100, " points") if results.measure(results.headline).is_share else (1, "")
    if min(lost) < 0 < max(lost):
        return f"from {scale * max(lost):.1f}{unit} lost to {-scale * min(lost):.1f} gained"
    return f"{_range([abs(v) * scale for v in lost])}{unit} {'lost' if max(lost) > 0 or not any(lost) else 'gained'}"


def _useless(results: Results, settings: Sequence[Setting]) -> list[str]:
    """Says so where a model is no better than guessing a class."""
    if results.headline != "accuracy":
        return []
    useless = []
    for s in settings:
        classes = len(s.cells[0].task.get("classes", ()))
        floor = max((_low(s, i) for i in range(len(s.cells))), default=1.0)
        if classes > 1 and floor <= 1 / classes:
            useless.append(f"{100 / classes:.0f} %")
    if not useless:
        return []
    who = "The model" if len(useless) == len(settings) else "In some settings the model"
    return [f"{who} learnt next to nothing: guessing a class gives about {useless[0]}."]


def _low(setting: Setting, index: int) -> float:
    card = setting.cells[index].card
    low = card.utility[0].low if card is not None and card.utility else None
    return low if low is not None else 1.0


def _range(values: Sequence[float], measure: Measure | None = None) -> str:
    low, high = min(values), max(values)
    if measure is not None and measure.is_share:
        same = f"{100 * low:.1f}" == f"{100 * high:.1f}"
        return f"{100 * low:.1f} %" if same else f"{100 * low:.1f} to {100 * high:.1f} %"
    a, b = f"{low:.1f}", f"{high:.1f}"
    return a if a == b else f"{a} to {b}"
