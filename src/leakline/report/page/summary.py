"""The whole study in one table for the first screen: every defence's promise, what attacks got, what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakline.cards import Promise
from leakline.cards import number as epsilon_text
from leakline.privacy import Seat
from leakline.report.page.cost import headline_name, lost_text, useless_text, utility_text
from leakline.report.page.words import right_at_most, verdict_of
from leakline.results import Results, Setting
from leakline.results.settings import Leak, comparable, rebuilt
from leakline.utility.baseline import no_better

NO_LIMIT = "no limit"


@dataclass(frozen=True)
class Cell:
    """What a reader sees, a softer second line, and what the column is sorted by."""

    text: str
    more: str = ""
    key: str = ""


@dataclass(frozen=True)
class Line:
    """One defence."""

    defence: str
    verdict: str
    limit: Cell
    attack: Cell
    utility: Cell
    undefended: bool = False


@dataclass(frozen=True)
class Summary:
    """All defences; ``several`` says that some rows stand for more than one setting and show the worst."""

    lines: tuple[Line, ...]
    measure: str
    several: bool

    @property
    def choosing(self) -> bool:
        """Whether there is something to pick from, with a promise that picking goes beyond."""
        return len(self.lines) > 1 and any(line.limit.text != NO_LIMIT for line in self.lines)


def summary(results: Results) -> Summary:
    """Every defence with finished runs, in the order of the study."""
    groups = [(d, results.settings_of(d)) for d in results.defences]
    lines = [
        Line(
            d, verdict_of(found), _limit(found), _attack(found), _utility(results, found),
            all(s.undefended for s in found),
        )
        for d, found in groups if found
    ]  # fmt: skip
    return Summary(tuple(lines), headline_name(results), any(len(found) > 1 for _, found in groups))


def _limit(settings: Sequence[Setting]) -> Cell:
    """The weakest promise over settings, of each the best that speaks for the whole."""
    best = [min(s.card.leading, key=_epsilon, default=None) for s in settings]
    weakest = max((p for p in best if p is not None), key=_epsilon, default=None)
    if weakest is None or None in best or weakest.epsilon is None or _epsilon(weakest) == math.inf:
        return Cell(NO_LIMIT, key="~")
    text = f"{right_at_most(weakest)} of 100 times"
    right = 50 * (1 + (weakest.advantage if weakest.advantage is not None else 1.0))
    more = f"epsilon {epsilon_text(weakest.epsilon)}, for one {weakest.unit}"
    return Cell(text, more, f"{weakest.unit} {right:010.6f}")  # sorted within each unit: they are not comparable


def _epsilon(promise: Promise) -> float:
    return promise.epsilon if promise.epsilon is not None else math.inf


def _attack(settings: Sequence[Setting]) -> Cell:
    """The attack that got furthest; what an audit proved stands below it."""
    found = [s.worst for s in settings if s.worst is not None]
    proved = max((s.proved.high for s in settings if s.proved is not None), default=None)
    audit = f"an audit proved epsilon ≥ {epsilon_text(proved)}" if proved is not None else ""
    audit = "an audit found no noise at all" if proved == math.inf else audit
    worst = max(found, key=lambda leak: (leak.yes_or_no, leak.estimate.mean - (leak.chance or 0.0)), default=None)
    image = rebuilt(settings)
    if image is not None and (worst is None or not worst.yes_or_no):
        guess = f"a guess without the update: {image.guess:.2f}"
        whole = f"mean of all attacked there {image.mean.estimate.mean:.2f}" if image.client else ""
        who = _sure(image.mean) if not whole else ", ".join(t for t in (image.by, image.mean.short) if t)
        more = "; ".join(text for text in (who, guess, whole, audit) if text)
        cheats = ", by a server that alters the model" if image.seat == Seat.MALICIOUS_SERVER else ""
        return Cell(f"images at SSIM {image.ssim:.2f}{_of(image.client)}{cheats}", more, f"{image.ssim:.6f}")
    if worst is None or not _readable(worst, bool(audit)):
        tried = any(s.leaks for s in settings)
        return Cell(audit[:1].upper() + audit[1:] or ("see the tables" if tried else "none was tried"))
    figures = sum(len(comparable(s.leaks)) for s in settings)
    many = f"the highest of {figures} figures" if figures > 4 else ""
    more = "; ".join(text for text in (_sure(worst), many, audit) if text)
    mean = worst.estimate.mean
    if worst.yes_or_no:
        return Cell(f"right {100 * mean:.0f} of 100 times", more, f"{100 * mean:.6f}")
    return Cell(f"{worst.label} {mean:.2f}, by chance {worst.chance:.2g}", more, f"{mean:.6f}")


def _of(client: str) -> str:
    return f" ({client})" if client else ""


def _readable(leak: Leak, audited: bool) -> bool:
    """Whether a figure says something by itself: a yes-or-no question, or a share where no audit says it better."""
    if leak.yes_or_no:
        return True
    return not audited and leak.chance is not None and 0 < leak.chance < 1 and 0 <= leak.estimate.mean <= 1


def _sure(leak: Leak) -> str:
    low, high = leak.interval
    if low is None or high is None or leak.is_chance is None:
        return f"{leak.by}, {leak.short}" if leak.short else leak.by
    scale = 100 if leak.yes_or_no else 1
    ends = f"{scale * max(low, 0):.{0 if scale > 1 else 2}f} to {scale * min(high, 1):.{0 if scale > 1 else 2}f}"
    return f"{leak.by}, {ends}{': cannot be told from guessing' if leak.is_chance else ''}"


def _utility(results: Results, settings: Sequence[Setting]) -> Cell:
    means = [s.utility.mean for s in settings if s.utility is not None]
    if not means or not results.headline:
        return Cell("not measured")
    lost = "" if all(s.undefended for s in settings) else lost_text(results, settings)
    if any(no_better(s.card.utility) for s in settings):
        lost = ""  # points lost say nothing where what is left is what a constant answer has
    more = "; ".join(text for text in (useless_text(settings), lost) if text)
    return Cell(utility_text(results, settings), more, f"{sum(means) / len(means):.6f}")
