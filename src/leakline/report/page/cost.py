"""What a defence cost: how useful its model is beside that of no defence, in words and in short."""

from __future__ import annotations

from collections.abc import Sequence

from leakline.measures import Measure
from leakline.results import Results, Setting
from leakline.utility.baseline import answer_of

WORDS = {
    "balanced_accuracy": "balanced accuracy", "auc_binary": "AUC", "auc_micro": "AUC (micro-averaged)",
    "dice_patient": "Dice over patients",
}  # fmt: skip
"""Utility figures as they stand in a sentence."""


def cost_words(results: Results, settings: Sequence[Setting]) -> list[str]:
    """The utility of one defence's settings against those without a defence and a constant answer, in sentences."""
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
    return [said, *_useless(have), *_otherwise(results, have), *_beside(results, have)]


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


def useless_text(settings: Sequence[Setting]) -> str:
    """Says so where models are no better than a constant answer; "" where none is."""
    useless = [s.remark for s in settings if s.remark]
    if not useless:
        return ""
    where = "" if len(useless) == len(settings) else f"in {len(useless)} of {len(settings)} settings "
    return f"{where}{min(useless)}"  # "no better" comes before "not measurably better"


def _useless(settings: Sequence[Setting]) -> list[str]:
    text = useless_text(settings)
    return [f"The model is {text}."] if text else []


def _otherwise(results: Results, settings: Sequence[Setting]) -> list[str]:
    """Says so where the undefended federation has another network: then the difference is not the defence's alone."""
    pairs = [(s, results.baseline(s)) for s in settings]
    if not any(b is not None and _network(b) != _network(s) for s, b in pairs):
        return []
    return ["It was trained with another network than the undefended one: the difference is not the defence's alone."]


def _network(setting: Setting) -> str:
    return repr(setting.cells[0].federation.get("model")) if setting.cells else ""


def _beside(results: Results, settings: Sequence[Setting]) -> list[str]:
    """What a constant answer gets, and beside it (for one setting) figures that a skewed test set cannot flatter."""
    known = [r for s in settings for r in s.card.utility[:1] if r.chance is not None]
    if not known:
        return []
    answer = answer_of(known[0])
    has = _range([r.chance for r in known if r.chance is not None], results.measure(known[0].measure))
    more = [
        f"{WORDS.get(r.measure, r.measure)} {100 * r.value:.1f} %, that answer {100 * r.chance:.1f} %"
        for r in (settings[0].card.utility[1:] if len(settings) == 1 else ())
        if r.chance is not None
    ]
    return [f"{answer[:1].upper()}{answer[1:]} has {has}." + (f" By {'; by '.join(more)}." if more else "")]


def _range(values: Sequence[float], measure: Measure | None = None) -> str:
    low, high = min(values), max(values)
    if measure is not None and measure.is_share:
        same = f"{100 * low:.1f}" == f"{100 * high:.1f}"
        return f"{100 * low:.1f} %" if same else f"{100 * low:.1f} to {100 * high:.1f} %"
    a, b = f"{low:.1f}", f"{high:.1f}"
    return a if a == b else f"{a} to {b}"
