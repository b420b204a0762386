"""The first screen in plain sentences, for a reader who does not know what epsilon is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakline.cards import OBSERVERS, Promise
from leakline.cards import number as epsilon_text
from leakline.report.page.cost import cost_words
from leakline.report.page.people import patient_words
from leakline.report.page.pictures import picture_words
from leakline.results import Results, Setting
from leakline.results.settings import Leak, comparable
from leakline.utility.baseline import no_better

VERDICTS = {
    "strong": "strong promise",
    "moderate": "moderate promise",
    "weak": "weak promise",
    "vacuous": "vacuous promise",
    "none": "no formal guarantee",
}
_RANK = list(VERDICTS)
KEPT = ("strong", "moderate", "weak")
"""Verdicts of promises that mean something."""
FEW = 4
"""How many sentences about promises a tile has room for."""


@dataclass(frozen=True)
class Glance:
    """One defence on the first screen."""

    defence: str
    verdict: str
    promise: tuple[str, ...]
    attack: tuple[str, ...]
    cost: tuple[str, ...]
    warnings: tuple[str, ...]


def what_was_trained(results: Results) -> str:
    """Who trained what, on which data, how often."""
    cells = [c for c in results.cells if c.federation]
    if not cells:
        return "Nothing has been trained yet."
    tasks = [c.task for c in cells]
    clients = _several([str(len(t.get("clients", {}))) for t in tasks])
    data = _several([str(t.get("name", "?")) for t in tasks])
    models = _several([_kind(c.federation.get("model")) for c in cells])
    rounds = _several([str(c.wanted) for c in cells])
    times = len({repr(c.labels.get("seed")) for c in results.cells})
    again = (
        f"Each federation was trained {times} times with different random seeds"
        if times > 1
        else "Each federation was trained once"
    )
    return (
        f"{clients} {_plural(clients, 'client')} together trained a model ({models}) on the data set {data} "
        f"for {rounds} {_plural(rounds, 'round')}, without handing over their data. {again}."
    )


def who_is_protected(results: Results) -> str:
    """Whom the defences mean to hide, and from whom; "" where none promises that."""
    promises = [p for s in results.settings if not s.undefended for p in s.card.leading]
    meant = [
        f"any one {p.unit} from {OBSERVERS.get(p.observer, p.observer)}" for p in promises if p.epsilon is not None
    ]
    if not meant:
        return ""
    return f"The defences are meant to hide {', or '.join(dict.fromkeys(meant))}."


def shared_warnings(found: Sequence[Glance]) -> dict[str, str]:
    """Warnings that several defences have, each with its defences, so that a page can say them once."""
    where: dict[str, list[str]] = {}
    for glance in found:
        for text in glance.warnings:
            where.setdefault(text, []).append(glance.defence)
    return {
        text: ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        for text, names in where.items()
        if len(names) > 1
    }


def versions(results: Results, current: str) -> list[str]:
    """Says so where runs were made by another version of leakline than the one that reports them."""
    found: dict[str, int] = {}
    for cell in results.cells:
        version = str(cell.versions.get("leakline", "unknown")) if cell.versions else ""
        if version and version != current:
            found[version] = found.get(version, 0) + 1
    return [
        f"{count} {'run was' if count == 1 else 'runs were'} made by leakline {version}; this report is by {current}. "
        "Numbers are as they were stored; a newer version may measure or promise differently."
        for version, count in found.items()
    ]


def in_short(results: Results) -> str:
    """Over all defences: does any of them promise something, and did that leave a model worth having?"""
    tried = [(d, verdict_of(results.settings_of(d))) for d in results.defences if _defended(results.settings_of(d))]
    if not tried:
        return "No finished run used a defence: nothing is promised to anybody."
    good = [f"{d} ({v})" for d, v in tried if v in KEPT]
    if not good:
        who = (
            "The one defence tried does not give"
            if len(tried) == 1
            else f"None of the {len(tried)} defences tried gives"
        )
        return f"{who} a formal promise that would protect anybody in practice."
    count = f"{len(good)} of {len(tried)} {_plural(str(len(tried)), 'defence')} tried"
    give = "gives" if len(good) == 1 else "give"
    useless = [d for d, v in tried if v in KEPT and all(no_better(s.card.utility) for s in results.settings_of(d))]
    but = f" But under {', '.join(useless)} the model is no better than a constant answer." if useless else ""
    return f"{count} {give} a formal promise that means something: {', '.join(good)}.{but}"


def glances(results: Results) -> list[Glance]:
    """Every defence with finished runs: its promise, what attacks got, what it cost."""
    found = []
    for defence in results.defences:
        settings = results.settings_of(defence)
        if settings:
            found.append(
                Glance(
                    defence, verdict_of(settings), tuple(_promises(results, settings)),
                    tuple(_attacks(results, settings)), tuple(cost_words(results, settings)),
                    tuple(dict.fromkeys(text for s in settings for text in s.warnings)),
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


def _promises(results: Results, settings: Sequence[Setting]) -> list[str]:
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        for promise in setting.card.promises:
            groups.setdefault(promise_words(promise), []).append(setting)
    several = len(groups) > 1 and len(settings) > 1
    said = [f"{places(results, where)}: {text}" if several else text for text, where in groups.items()]
    return said if len(said) <= FEW else [*said[: FEW - 1], f"{len(said) - FEW + 1} more promises are on the cards."]


def promise_words(promise: Promise) -> str:
    """A promise in plain words, or why there is none; what holds instead is for the card."""
    if promise.epsilon is None or not math.isfinite(promise.epsilon):
        reason = promise.reason.rstrip(".") or "the noise does not bound what can be learnt"
        there = "there is " if reason.startswith("no ") else ""
        return f"No formal guarantee, because {there}{reason}."
    against = OBSERVERS.get(promise.observer, promise.observer)
    start = f"It is meant to hide any one {promise.unit} from {against}."
    level = f"epsilon = {epsilon_text(promise.epsilon)}"
    odds = f"{right_at_most(promise)} of 100 times (blind guessing: 50)"
    if promise.verdict == "vacuous":
        return (
            f"{start} But the promise is vacuous ({level}): it would still hold if an attacker were right up to "
            f"{odds}. It protects nobody in practice."
        )
    strength = promise.verdict or "of unknown strength"
    return f"{start} The promise is {strength} ({level}): whatever an attacker does, it is right at most {odds}."


def right_at_most(promise: Promise) -> str:
    """How often of 100 times the promise lets the best attacker be right."""
    right = 50 * (1 + (promise.advantage if promise.advantage is not None else 1.0))
    return f"{right:.0f}" if right < 99 else "more than 99" if right > 99.5 else "99"


def _attacks(results: Results, settings: Sequence[Setting]) -> list[str]:
    return _guesses(results, settings) + patient_words(settings) + _audited(settings)


def _audited(settings: Sequence[Setting]) -> list[str]:
    """What an audit certified about the mechanism itself."""
    most = max((s.proved for s in settings if s.proved is not None), key=lambda bound: bound.high, default=None)
    if most is None:
        return []
    if math.isinf(most.high):
        return ["An audit found no noise at all: whoever sees what is published can tell two cases apart for certain."]
    tested = f" in {most.n:,} trials" if most.n else ""
    return [f"An audit of the mechanism itself{tested} proved that epsilon is at least {epsilon_text(most.high)}."]


def _guesses(results: Results, settings: Sequence[Setting]) -> list[str]:
    leaks = [(s, leak) for s in settings for leak in s.leaks]
    if not leaks:
        return ["No attack was tried, so nothing is known about what leaks."]
    odds = [(s, s.worst) for s in settings if s.worst is not None and s.worst.yes_or_no]
    names = list(dict.fromkeys(leak.by for _, leak in leaks))
    seen = picture_words(results, settings)
    if not odds:
        return seen or [f"{_listed(names)} tried; {'its' if len(names) == 1 else 'their'} figures are in the tables."]
    setting, worst = max(odds, key=lambda pair: pair[1].estimate.mean)
    guessing = {leak.by for s in settings for leak in comparable(s.leaks)}
    kind = "" if len(guessing) == len(names) else " that answer yes or no"
    many = f"The strongest of {len(guessing)} attacks{kind} ({worst.by})"
    who = f"The attack {worst.by}" if len(guessing) == 1 else many
    tried = sum(len(comparable(s.leaks)) for s in settings)
    picked = (
        f" It is the highest of {tried} such figures, and the interval does not allow for that choice: the highest of "
        "many looks good by luck too."
        if tried > 4
        else ""
    )
    where = f", under {results.place(setting.labels)}," if len(settings) > 1 else ""
    often = f"{100 * worst.estimate.mean:.0f} of 100 times; blind guessing: 50"
    return [f"{who}{where} is right {often}.{_sure(worst)}{picked}", *seen]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'was' if len(names) == 1 else 'were'}"


def _sure(leak: Leak) -> str:
    low, high = leak.interval
    if leak.short and leak.is_chance is None:
        return f" It was {leak.short}: that it did no better says nothing."
    if low is None or high is None or leak.is_chance is None:
        return ""
    interval = f"95 % interval {100 * max(low, 0):.0f} to {100 * min(high, 1):.0f}"
    if leak.is_chance:
        return f" That cannot be told from guessing ({interval}); a stronger attack may still succeed."
    return f" That is {'better' if leak.estimate.mean > 0.5 else 'worse'} than guessing ({interval})."


def _defended(settings: Sequence[Setting]) -> bool:
    return bool(settings) and not all(s.undefended for s in settings)


def places(results: Results, settings: Sequence[Setting]) -> str:
    """Where a defence was tried, at most six places by name."""
    found = list(dict.fromkeys(results.place(s.labels) for s in settings))
    comma = "; " if len(results.axes) > 1 else ", "
    return comma.join(found[:6]) + (f" and {len(found) - 6} more" if len(found) > 6 else "")


def _several(values: Sequence[str]) -> str:
    return " or ".join(dict.fromkeys(values))


def _plural(count: str, word: str) -> str:
    return word if count == "1" else f"{word}s"


def _kind(described: Any) -> str:
    use = described.get("path") or described.get("use", "?") if isinstance(described, dict) else str(described)
    if isinstance(described, dict) and described.get("path"):
        return str(use)  # a network of the user's own, by the name that the study knows it by
    return str(use).rpartition(":")[2].partition("#")[0]
