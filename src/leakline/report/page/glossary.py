"""What the words of a report mean: the measures, rules and quantities that stand in it, each in a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable

from leakline.results import Results

TERMS = {
    "epsilon": "How much a promise lets an observer learn of the one it protects: the smaller, the stronger. It is a "
    "number for one unit (a record, a client); epsilons of different units are not comparable.",
    "delta": "The chance with which a promise may fail altogether.",
    "mu": "The same as epsilon on another scale: how many standard deviations apart the two cases lie that an attacker "
    "tells apart.",
    "p": "How often an attack that knows nothing would do as well; below 0.05 it is taken for more than luck.",
    "chance": "What is reached without having learnt anything: blind guessing, or the best constant answer.",
    "prior": "A guess of the image that is made without the client's update.",
    "shadow": "A federation that the attacker trains itself, on data like the clients', to compare with.",
}
"""Quantities on cards and pages."""

RULES = {
    "loss": "the record's loss alone: low is taken for trained on (Yeom et al. 2018)",
    "lira-online": "likelihood ratio of shadow federations with and without the record (Carlini et al. 2022)",
    "lira-offline": "likelihood under shadow federations without the record (Carlini et al. 2022)",
    "rmia": "the record's probability by its mean over shadow federations (Zarifzadeh et al. 2024)",
    "difference": "how far the record's log-odds lie above the middle of shadow federations with and without it",
    "learnt": "boosted trees over all that the seat sees, learnt with each shadow federation in turn as the target",
    "fedmia": "the record's own client's models against other clients', without shadow federations (Zhu et al. 2024)",
    "regression": "each client's updates regressed on the gradients of all its records, without shadow federations",
    "calibrated": "each record's likelihood ratio over all other pairs of worlds, with and without the client",
}
"""Rules by which attacks decide, as they stand in brackets behind a measure."""


def glossary(results: Results) -> list[tuple[str, str]]:
    """Every measure, rule and quantity of a report, in alphabetical order, with its meaning."""
    readings = [r for cell in results.finished.cells for r in (*cell.readings, *cell.attacks)]
    found = {r.measure: results.measure(r.measure).meaning for r in readings}
    found |= {f"({rule})": f"By {RULES[rule]}." for r in readings if (rule := str(r.about.get("rule", ""))) in RULES}
    texts = " ".join(text for s in results.settings for _, text in s.card.rows())
    found |= {word: text for word, text in TERMS.items() if word in ("epsilon", "delta") or _stands(word, texts, found)}
    return sorted((word, text) for word, text in found.items() if text)


def meaning(results: Results, label: object) -> str:
    """What the measure at the start of a label ("auc (rmia)") or at the head of a column means; "" for other words."""
    return results.measure(str(label).partition(" ")[0]).meaning


def meanings(results: Results, texts: Iterable[str]) -> list[tuple[str, str]]:
    """The part of the glossary that some texts ask for."""
    whole = " ".join(texts)
    return [(word, text) for word, text in results.once(glossary) if _stands(word, whole, ())]


def _stands(word: str, text: str, known: Iterable[str]) -> bool:
    return word not in known and re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None
