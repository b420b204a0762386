"""What a model is worth that never looks: the best constant answer, and whether a trained model beats it.

Always answering the commonest class is right as often as that class occurs, so an accuracy says nothing without it. A
mask has two constant answers, nothing and everything. Utility readings carry the constant answer's figure as their
``chance`` and its words in ``about["blind"]``; `no_better` is the one rule by which cards, pages and decisions judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakline.measures import Measure, measure_of
from leakline.readings import Reading

BLIND = "blind"
"""The key of a reading's ``about`` that says which constant answer its ``chance`` is of."""
RANKS = ("auc_binary", "auc_micro")
"""Measures of how a model's scores rank; the others are of what it answers."""
SURE = 50.0
"""A logit that stands for certainty: its probability differs from 0 or 1 by less than 1e-21."""


@dataclass(frozen=True)
class Baseline:
    """The best that a constant answer gets: that answer in words, and its figure of every measure."""

    answer: str
    figures: Mapping[str, float]


def constant_answers(kind: str, targets: Tensor, classes: Sequence[str]) -> dict[str, Tensor]:
    """Outputs that do not depend on the input, by what they answer, the same for every example.

    Of classes: the log of their frequencies, of all constant outputs the one with the least cross-entropy, whose
    answer is the commonest class. Of masks: nothing, everything, and every pixel marked with the share of marked
    pixels (for the loss; as a mask it is one of the other two).
    """
    n = len(targets)
    if kind == "classification":
        shares = torch.bincount(targets.long(), minlength=len(classes)).double() / n
        logits = shares.log().clamp_min(-SURE)
        return {f"always answering {classes[int(shares.argmax())]}": logits.expand(n, -1)}
    share = targets.double().mean().clamp(1e-12, 1 - 1e-12)
    marks = {
        "always marking nothing": torch.tensor(-SURE).double(),
        "always marking everything": torch.tensor(SURE).double(),
        "marking every pixel alike": torch.logit(share),
    }
    return {answer: logit.expand(targets.shape) for answer, logit in marks.items()}


def baseline(
    summary: Callable[[Tensor], Mapping[str, float]], answers: Mapping[str, Tensor], headline: str
) -> Baseline:
    """Of every measure the best that a constant answer gets; named after the first that is best by the headline."""
    scored = {answer: summary(outputs) for answer, outputs in answers.items()}
    figures = {
        name: _best(measure_of(name), [s[name] for s in scored.values()]) for name in next(iter(scored.values()))
    }
    answer = next(a for a, s in scored.items() if s[headline] == figures[headline])
    return Baseline(answer, figures)


def _best(measure: Measure, values: Sequence[float]) -> float:
    return max(values) if measure.better == "higher" else min(values)


def quoted(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """The utility figures that people read first: the headline, then what a skewed test set cannot flatter."""
    known = sorted((r for r in readings if measure_of(r.measure).quoted), key=lambda r: measure_of(r.measure).quoted)
    names = [r.measure for r in known]
    # With two classes the micro-averaged AUC repeats the accuracy's flattery; the binary one does not.
    return tuple(r for r in known if not (r.measure == "auc_micro" and "auc_binary" in names))


def no_better(readings: Sequence[Reading]) -> str:
    """Says that a model is no better than a constant answer; "" where one of its figures is, or none is known.

    A figure is better if the low end of its interval is above what the constant answer gets. Figures without an
    interval count only where no figure has one. What the model answers is judged: scores that rank well, under a
    threshold that makes nothing of them, are remarked on and change nothing. They are judged where nothing else is.
    """
    judged = _judged(readings)
    answers = _answers(judged)
    if not answers or any(map(is_better, answers)):
        return ""
    ranks = [f"AUC {r.value:.3g}" for r in judged if r.measure in RANKS and r.low is not None and is_better(r)]
    return _not_better(judged[0]) + (f"; another threshold on its scores may do better ({ranks[0]})" if ranks else "")


def remark(readings: Sequence[Reading]) -> str:
    """What `no_better` says, or that of what a model answers the headline alone is no better; else ""."""
    judged = _judged(readings)
    better = [r.measure.replace("_", " ") for r in _answers(judged) if is_better(r)]
    if not better or is_better(judged[0]):
        return no_better(readings)
    return f"{_not_better(judged[0])} by {judged[0].measure.replace('_', ' ')}, but by {' and '.join(better)}"


def is_better(reading: Reading) -> bool:
    """Whether a figure is measurably better than the constant answer's: by its low end, where it has an interval."""
    return (reading.low if reading.low is not None else reading.value) > (reading.chance or 0.0)


def _judged(readings: Sequence[Reading]) -> list[Reading]:
    """The quoted figures that have a baseline, the headline first."""
    return [r for r in quoted(readings) if r.chance is not None and measure_of(r.measure).better == "higher"]


def _answers(judged: Sequence[Reading]) -> list[Reading]:
    """Those of what a model answers, with intervals if any has one; of its scores where there is nothing else."""
    answers = [r for r in judged if r.measure not in RANKS] or list(judged)
    return [r for r in answers if r.low is not None] or answers


def _not_better(reading: Reading) -> str:
    start = "no better" if reading.value <= (reading.chance or 0.0) else "not measurably better"
    return f"{start} than {answer_of(reading)}"


def answer_of(reading: Reading) -> str:
    """The constant answer that a reading's ``chance`` is of, in words."""
    return str(reading.about.get(BLIND, "a constant answer"))


def beside(readings: Sequence[Reading]) -> list[str]:
    """What stands beside each utility figure: what the constant answer gets, named at the first; "" if not known."""
    texts, named = [], ""
    for r in readings:
        answer = answer_of(r)
        words = "that answer" if answer == named else answer
        texts.append("" if r.chance is None else f"{words}: {r.chance:.3g}")
        named = named if r.chance is None else answer
    return texts
