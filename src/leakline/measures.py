"""What each number means: one line per measure. Cards, pooling, tables, charts and decisions all ask here.

A measure that an attack from outside the package brings is described by that attack (`Attack.measures`) and travels
with the store, since a report imports nobody's attack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from math import inf
from typing import Any, Literal

Better = Literal["higher", "lower"]
Shown = Literal["share", "number", "loss", "bound"]


@dataclass(frozen=True)
class Measure:
    """One measure: ``meaning`` in a plain sentence, its range, and how to show it.

    ``better``: the direction that is good for the people served (utility) or protected (attacks). ``chance``: what
    blind guessing gives, where that is the same everywhere; otherwise each reading carries its own. ``shown_as``: a
    share of 1, a number, a loss, or a lower bound on a privacy parameter. ``quoted``: the place among the measures
    that a card and the first screen quote of an attack, or of a model's utility (1 is first), or 0 for none.
    """

    name: str
    meaning: str = ""
    low: float = -inf
    high: float = inf
    better: Better = "higher"
    chance: float | None = None
    shown_as: Shown = "number"
    quoted: int = 0

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_" for c in self.name):
            raise ValueError(f"a measure's name is one word of letters, digits, - and _: {self.name!r}")
        if not self.low < self.high:
            raise ValueError(f"{self.name}: low must be below high: {self.low}, {self.high}")
        if self.better not in ("higher", "lower") or self.shown_as not in ("share", "number", "loss", "bound"):
            raise ValueError(f"{self.name}: better is higher or lower, and it is shown as share, number, loss or bound")

    @property
    def is_share(self) -> bool:
        """Whether people read it in percent."""
        return self.shown_as == "share"

    @property
    def is_bound(self) -> bool:
        """Whether it is a lower bound on a privacy parameter, to be held against a promise."""
        return self.shown_as == "bound"

    def cut(self, value: float) -> float:
        """The value, not beyond the measure's range: an interval's end may leave it, the truth cannot."""
        return min(max(value, self.low), self.high)

    def line(self) -> dict[str, Any]:
        """Plain values for JSON, without what is as by default."""
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


VERDICT = "verdict"

_share = partial(Measure, low=0.0, high=1.0, shown_as="share")
_leak = partial(_share, better="lower")
_loss = partial(Measure, low=0.0, shown_as="loss")

MEASURES: dict[str, Measure] = {
    measure.name: measure
    for measure in (
        # How useful a model is.
        _share("accuracy", "Share of right answers.", quoted=1),
        _share("balanced_accuracy", "Share of right answers, every class counting the same; a constant answer has "
               "1 / classes.", quoted=2),
        _share("f1", "Balance of finding and not over-calling a class (F1), every class counting the same."),
        _share("precision", "Share of a class's calls that are right, every class counting the same."),
        _share("auc_micro", "How well scores rank right classes above wrong ones, all decisions together.", quoted=4),
        _share("auc_binary", "How well scores rank the second of two classes above the first.", quoted=3),
        _share("dice", "Overlap of the marked and the true region (Dice, mask at probability 0.5), mean over images.",
               quoted=1),
        _share("iou", "Shared part of the marked and the true region (IoU of the same mask), mean over images."),
        _share("dice_patient", "Dice, mean over patients of the mean over their images.", quoted=2),
        _share("iou_patient", "IoU, mean over patients of the mean over their images."),
        _share("validation", "The first of a model's figures (accuracy, Dice), on the server's validation data."),
        _loss("loss", "The loss that training lowers, mean over examples.", better="lower"),
        # What attacks get right.
        _leak("auc", "How often the attack ranks a yes above a no; blind guessing: half of the time.",
              chance=0.5, quoted=1),
        _leak("balanced-right", "Share of the attack's answers that are right, yes and no counting the same.",
              chance=0.5, quoted=2),
        _leak("tpr", "Share of the yeses that are found while few of the noes are called yes (at the rate fpr).",
              quoted=3),
        _leak("right", "Share of the attack's answers that are right; chance is always guessing the commoner."),
        _leak("patients-right", "How often a patient's taking part was told right, mean over patients and federations.",
              chance=0.5, quoted=4),
        _leak("patients-exposed", "Share of patients who can be told apart at 95 %, a level that holds for all of them "
              "at once.", quoted=5),
        _leak("patients-at-risk", "Share of patients who were told right at least as often as the stated risk; chance "
              "is how many luck alone would put there.", quoted=6),
        _leak("worst-patient", "How often the patient who is worst off was told right; the low end holds for all "
              "patients at once.", quoted=7),
        _leak("found-out", "How often one person's trait was guessed right, over repeats."),
        _leak("shares-right", "Share of a client's examples that the guessed class shares put into the right class; "
              "1 is exact, chance is what the public shares say.", quoted=1),
        Measure("share", "A client's share of one class as an attack guesses it, where nobody knows the truth.",
                0.0, 1.0, "lower", shown_as="share"),
        _leak("counts-right", "Share of clients of whom every class's count is guessed to the example."),
        _leak("shares-held", "Share of clients whose true class shares lie within the attack's own interval.",
              quoted=2),
        # Client inference, as paper 000 has it.
        _loss("aggregated-loss", "The participants' test loss that the server sends round.", better="lower"),
        _loss("test-loss", "Loss on the server's test data in the worlds with the target.", better="lower"),
        _loss("shadow-loss", "Loss on data like the target's, which the attacker holds.", better="higher"),
        Measure("difference-percent", "By how many percent the loss on data like the target's exceeds everybody's."),
        # How much a rebuilt image shows.
        Measure("ssim", "Likeness of rebuilt and true image (SSIM); 1 is the same image.", -1.0, 1.0, "lower"),
        _leak("images-recovered", "Share of a client's images that were taken out at SSIM 0.95 or more.", quoted=1),
        Measure("psnr", "Likeness of rebuilt and true image in decibels (PSNR).", better="lower"),
        Measure("rdlv", "How much nearer to the true image the attack came than what it started from.",
                better="lower"),
        _leak("iip", "Share of rebuilt images whose nearest of all images is one of the attacked client's."),
        _leak("iip-exact", "Share of rebuilt images whose nearest of all images is the very image."),
        Measure("cosine", "Likeness of a rebuilt image to the nearest of all, in an embedding.", -1.0, 1.0, "lower"),
        Measure("objective", "How well the rebuilt images explain the update; lower fits better.", better="higher"),
        # What audits prove and estimate.
        Measure("epsilon", "Proven lower bound on epsilon: how surely two cases can be told apart.", low=0.0,
                better="lower", shown_as="bound"),
        Measure("mu", "Proven lower bound on mu: how many standard deviations two cases lie apart.", low=0.0,
                better="lower", shown_as="bound"),
        _leak(VERDICT, "What an audit says: 1 is a broken promise, 0.5 a suspicion, 0 a claim that it cannot test."),
        Measure("fitted-epsilon", "Epsilon of two normal laws fitted to scores in and out: an estimate, no bound.",
                low=0.0, better="lower", chance=0.0),
        Measure("accuracy-lost", "How much less often the model is right with an audit's canaries in its training.",
                -1.0, 1.0, "lower", chance=0.0, shown_as="share"),
        Measure("estimated-epsilon", "Epsilon estimated as paper 002 does, biased upwards; its low end is proven.",
                better="lower", chance=0.0),
    )
}  # fmt: skip
"""Everything that utility and the attacks on the menu measure, by name."""


def measure_of(name: str, measures: Mapping[str, Measure] = MEASURES) -> Measure:
    """The measure of a name; of one that nobody describes only the name is known, and that more counts as better."""
    known = measures.get(name) or MEASURES.get(name)
    if known is not None:
        return known
    word = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    return Measure(word or "unnamed")


def read_measures(lines: Any) -> dict[str, Measure]:
    """The measures that a store describes (`Measure.line`), by name; what cannot be read is left out."""
    found: dict[str, Measure] = {}
    known = {f.name for f in fields(Measure)}
    for line in lines if isinstance(lines, list) else ():
        try:
            measure = Measure(**{k: v for k, v in line.items() if k in known})
        except (AttributeError, TypeError, ValueError):
            continue
        if isinstance(measure.meaning, str) and isinstance(measure.quoted, int):
            found[measure.name] = measure
    return found


def own_measures(measures: Iterable[Measure]) -> dict[str, Measure]:
    """Those that are not built in, by name; a ValueError where one name would mean two things."""
    found: dict[str, Measure] = {}
    for measure in measures:
        if found.setdefault(measure.name, MEASURES.get(measure.name, measure)) != measure:
            raise ValueError(f"the measure {measure.name!r} is described in two ways")
    return {name: measure for name, measure in found.items() if name not in MEASURES}
