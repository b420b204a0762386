"""The first screen in plain sentences, for a reader who does not know what epsilon is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakline.cards import OBSERVERS, Promise
from leakline.cards import number as epsilon_text
from leakline.report.results import SHARES
from leakline.report.settings import Leak, Pooled, Setting, comparable
from leakline.report.text import number

VERDICTS = {
    "strong": "strong promise",
    "moderate": "moderate promise",
    "weak": "weak promise",
    "vacuous": "vacuous promise",
    "none": "no formal guarantee",
}
_RANK = list(VERDICTS)


@dataclass(frozen=True)
class Glance:
    """One defence on the first screen."""

    defence: str
    verdict: str
    promise: tuple[str, ...]
    attack: tuple[str, ...]
    cost: tuple[str, ...]
    warnings: tuple[str, ...]


def what_was_trained(pooled: Pooled) -> str:
    """Who trained what, on which data, how often."""
    cells = [c for c in pooled.study.cells if c.federation]
    if not cells:
        return "Nothing has been trained yet."
    tasks = [c.federation.get("task") or {} for c in cells]
    clients = _several([str(len(t.get("clients", {}))) for t in tasks])
    data = _several([str(t.get("name", "?")) for t in tasks])
    models = _several([_kind(c.federation.get("model")) for c in cells])
    rounds = _several([str(c.wanted) for c in cells])
    times = len({repr(c.labels.get("seed")) for c in pooled.study.cells})
    again = (
        f"Each federation was trained {times} times with different random seeds"
        if times > 1
        else "Each federation was trained once"
    )
    return (
        f"{clients} {_plural(clients, 'client')} together trained a model ({models}) on the data set {data} "
        f"for {rounds} {_plural(rounds, 'round')}, without handing over their data. {again}."
    )


def versions(pooled: Pooled, current: str) -> list[str]:
    """Says so where runs were made by another version of leakline than the one that reports them."""
    found: dict[str, int] = {}
    for cell in pooled.study.cells:
        known = cell.about.get("versions")
        version = str(known.get("leakline", "unknown")) if isinstance(known, dict) else ""
        if version and version != current:
            found[version] = found.get(version, 0) + 1
    return [
        f"{count} {'run was' if count == 1 else 'runs were'} made by leakline {version}; this report is by {current}. "
        "Numbers are as they were stored; a newer version may measure or promise differently."
        for version, count in found.items()
    ]


def in_short(pooled: Pooled) -> str:
    """One sentence over all defences: does any of them promise something?"""
    tried = [(d, verdict_of(_of(pooled, d))) for d in pooled.defences if _defended(_of(pooled, d))]
    if not tried:
        return "No finished run used a defence: nothing is promised to anybody."
    good = [d for d, v in tried if v in ("strong", "moderate", "weak")]
    if not good:
        who = (
            "The one defence tried does not give"
            if len(tried) == 1
            else f"None of the {len(tried)} defences tried gives"
        )
        return f"{who} a formal promise that would protect anybody in practice."
    count = f"{len(good)} of {len(tried)} {_plural(str(len(tried)), 'defence')} tried"
    give = "gives" if len(good) == 1 else "give"
    return f"{count} {give} a formal promise that means something: {', '.join(good)}."


def glances(pooled: Pooled) -> list[Glance]:
    """Every defence with finished runs: its promise, what attacks got, what it cost."""
    found = []
    for defence in pooled.defences:
        settings = _of(pooled, defence)
        if settings:
            warnings = [t for s in settings for t in ((s.card.stamp,) if s.card.stamp else ()) + s.card.broken]
            found.append(
                Glance(
                    defence, verdict_of(settings), tuple(_promises(pooled, settings)),
                    tuple(_attacks(pooled, settings)), tuple(_cost(pooled, settings)), tuple(dict.fromkeys(warnings)),
                )
            )  # fmt: skip
    return found


def verdict_of(settings: Sequence[Setting]) -> str:
    """The weakest verdict over settings; a stack is as good as its best promise for the unit it is about."""
    each = [min((_verdict(p) for p in s.card.leading), key=_RANK.index, default="none") for s in settings]
    return max(each, key=_RANK.index, default="none")


def _verdict(promise: Promise) -> str:
    if promise.epsilon is None or not math.isfinite(promise.epsilon):
        return "none"
    return promise.verdict if promise.verdict in VERDICTS else "none"


def _promises(pooled: Pooled, settings: Sequence[Setting]) -> list[str]:
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        for promise in setting.card.promises:
            groups.setdefault(promise_words(promise), []).append(setting)
    several = len(groups) > 1 and len(settings) > 1
    return [f"{places(pooled, where)}: {text}" if several else text for text, where in groups.items()]


def promise_words(promise: Promise) -> str:
    """A promise in plain words, or why there is none."""
    if promise.epsilon is None or not math.isfinite(promise.epsilon):
        reason = promise.reason.rstrip(".") or "the noise does not bound what can be learnt"
        instead = f" What holds instead: {promise.instead.rstrip('.')}." if promise.instead else ""
        there = "there is " if reason.startswith("no ") else ""
        return f"No formal guarantee, because {there}{reason}.{instead}"
    right = 50 * (1 + (promise.advantage if promise.advantage is not None else 1.0))
    shown = f"{right:.0f}" if right < 99 else "more than 99" if right > 99.5 else "99"
    against = OBSERVERS.get(promise.observer, promise.observer)
    start = f"It is meant to hide any one {promise.unit} from {against}."
    level = f"epsilon = {epsilon_text(promise.epsilon)}"
    odds = f"{shown} of 100 times (blind guessing: 50)"
    if promise.verdict == "vacuous":
        return (
            f"{start} But the promise is vacuous ({level}): it would still hold if an attacker were right up to "
            f"{odds}. It protects nobody in practice."
        )
    strength = promise.verdict or "of unknown strength"
    return f"{start} The promise is {strength} ({level}): whatever an attacker does, it is right at most {odds}."


def _attacks(pooled: Pooled, settings: Sequence[Setting]) -> list[str]:
    return _guesses(pooled, settings) + _audited(settings)


def _audited(settings: Sequence[Setting]) -> list[str]:
    """What an audit certified about the mechanism itself."""
    bounds = [
        (high, n) for s in settings for measure, _, _, high, n in s.measured if measure.split(":")[0] == "epsilon"
    ]
    if not bounds:
        return []
    most, trials = max(bounds, key=lambda bound: bound[0])
    if math.isinf(most):
        return ["An audit found no noise at all: whoever sees what is published can tell two cases apart for certain."]
    tested = f" in {trials:,} trials" if trials else ""
    return [f"An audit of the mechanism itself{tested} proved that epsilon is at least {epsilon_text(most)}."]


def _guesses(pooled: Pooled, settings: Sequence[Setting]) -> list[str]:
    leaks = [(s, leak) for s in settings for leak in s.leaks]
    if not leaks:
        return ["No attack was tried, so nothing is known about what leaks."]
    odds = [(s, s.worst) for s in settings if s.worst is not None and s.worst.chance == 0.5]
    names = list(dict.fromkeys(leak.by for _, leak in leaks))
    if not odds:
        return [f"{', '.join(names)} was tried; its figures are in the table of attacks."]
    setting, worst = max(odds, key=lambda pair: pair[1].estimate.mean)
    who = f"The attack {worst.by}" if len(names) == 1 else f"The strongest of {len(names)} attacks ({worst.by})"
    tried = sum(len(comparable(s.leaks)) for s in settings)
    picked = (
        f" It is the highest of {tried} such figures, and the interval does not allow for that choice: the highest of "
        "many looks good by luck too."
        if tried > 4
        else ""
    )
    where = f", under {pooled.place(setting.labels)}," if len(settings) > 1 else ""
    return [
        f"{who}{where} is right {100 * worst.estimate.mean:.0f} of 100 times; blind guessing: 50.{_sure(worst)}{picked}"
    ]


def _sure(leak: Leak) -> str:
    low, high = leak.interval
    if low is None or high is None or leak.is_chance is None:
        return ""
    interval = f"95 % interval {100 * max(low, 0):.0f} to {100 * min(high, 1):.0f}"
    if leak.is_chance:
        return f" That cannot be told from guessing ({interval}); a stronger attack may still succeed."
    return f" That is {'better' if leak.estimate.mean > 0.5 else 'worse'} than guessing ({interval})."


def _cost(pooled: Pooled, settings: Sequence[Setting]) -> list[str]:
    have = [s for s in settings if s.utility is not None]
    if not have or not pooled.headline:
        return ["How useful the model is was not measured."]
    name = pooled.headline.replace("_", " ")
    shown = _range([s.utility.mean for s in have if s.utility is not None], pooled.headline)
    text = f"{name[:1].upper()}{name[1:]} {shown}"
    if all(s.undefended for s in have):
        return [f"{text}. This is the undefended federation that the others are compared with."] + _guessing(
            pooled, have
        )
    pairs = [(s, pooled.baseline(s)) for s in have]
    bases = [b.utility.mean for _, b in pairs if b is not None and b.utility is not None]
    lost = [
        (b.utility.mean - s.utility.mean) * (1 if pooled.better == "higher" else -1)
        for s, b in pairs if b is not None and b.utility is not None and s.utility is not None
    ]  # fmt: skip
    if not lost:
        return [f"{text}. This study has no undefended federation to compare with."] + _guessing(pooled, have)
    share = pooled.headline in SHARES
    points = _range([abs(v) * (100 if share else 1) for v in lost], "")
    unit = " points" if share else ""
    worse = "lost" if min(lost) >= 0 else "gained" if max(lost) <= 0 else "of difference either way"
    return [f"{text}, against {_range(bases, pooled.headline)} without a defence: {points}{unit} {worse}."] + _guessing(
        pooled, have
    )


def _guessing(pooled: Pooled, settings: Sequence[Setting]) -> list[str]:
    """Says so where a model is no better than guessing a class."""
    if pooled.headline != "accuracy":
        return []
    useless = []
    for s in settings:
        classes = len((s.cells[0].federation.get("task") or {}).get("classes", ()))
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


def shown_value(value: float, measure: str) -> str:
    """A utility figure as people read it: shares in per cent."""
    return f"{100 * value:.1f} %" if measure in SHARES else number(value)


def _range(values: Sequence[float], measure: str) -> str:
    low, high = min(values), max(values)
    if measure in SHARES:
        same = f"{100 * low:.1f}" == f"{100 * high:.1f}"
        return f"{100 * low:.1f} %" if same else f"{100 * low:.1f} to {100 * high:.1f} %"
    a, b = f"{low:.1f}", f"{high:.1f}"
    return a if a == b else f"{a} to {b}"


def _of(pooled: Pooled, defence: str) -> list[Setting]:
    return [s for s in pooled.settings if s.defence == defence]


def _defended(settings: Sequence[Setting]) -> bool:
    return bool(settings) and not all(s.undefended for s in settings)


def places(pooled: Pooled, settings: Sequence[Setting]) -> str:
    """Where a defence was tried, at most six places by name."""
    found = list(dict.fromkeys(pooled.place(s.labels) for s in settings))
    return ", ".join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")


def _several(values: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(values))


def _plural(count: str, word: str) -> str:
    return word if count == "1" else f"{word}s"


def _kind(described: Any) -> str:
    use = described.get("use", "?") if isinstance(described, dict) else str(described)
    return str(use).rpartition(":")[2].partition("#")[0]
