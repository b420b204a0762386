"""Figures 4, 5, 6a and 6b of paper 001 as numbers: by client, round, images and local steps.

What noise does is in `paper_001_noise`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from leakline.papers.gradient_inversion.noise import TABLES as NOISE
from leakline.papers.gradient_inversion.store import Setting, in_order, risky, turns
from leakline.papers.gradient_inversion.updates import kept
from leakline.papers.gradient_inversion.words import IMAGES, LEAK, NOT_SAFE, leak, noted
from leakline.results.table import Table

_NOTE = f"{IMAGES}; {NOT_SAFE}"


def figure_4(root: Path) -> Table:
    """Figure 4: what each client's update gave away, early and late in training."""
    found = turns(root, lambda s: s.scenario in ("phase", "nine-clients") and s.plain)
    rows = [
        (scenario, client, index + 1, attack, *leak(own))
        for (scenario, client, index, attack), own in in_order(
            found, lambda t: (t.setting.scenario, t.client, t.round, t.attack)
        )
    ]
    columns = ("scenario", "client", "round", "attack", *LEAK)
    return Table("Figure 4: inversions by client and round", columns, tuple(rows), noted(rows, _NOTE))


def figure_5(root: Path) -> Table:
    """Figure 5: the clients with one image by training phase, with the length of their updates."""
    found = [
        turn
        for scenario in ("phase", "fundus")
        for turn in risky(turns(root, lambda s, name=scenario: s.scenario == name and s.plain))  # type: ignore[misc]
    ]
    rows = []
    for (scenario, index, attack), own in in_order(found, lambda t: (t.setting.scenario, t.round, t.attack)):
        updates = [kept(root, t.setting, t.client, t.round) for t in own]
        norms = [update.norm for update in updates if update is not None]
        rate = own[0].setting.plan(own[0].client).rate(index)
        rows.append((
            scenario, index + 1, attack, *leak(own), sum(norms) / len(norms) if norms else None, rate,
        ))  # fmt: skip
    lacking = "" if all(row[-2] is not None for row in rows) else "; norms: only where the store kept the update"
    note = (
        f"{_NOTE}; norm of the update: of its weights, without BatchNorm's statistics, mean over clients{lacking}; the "
        "paper starts from pre-trained weights, here training starts from scratch unless the study says otherwise"
    )
    columns = ("scenario", "round", "attack", *LEAK, "norm of the update", "learning rate")
    return Table("Figure 5: one-image clients by training phase", columns, tuple(rows), noted(rows, note))


def figure_6a(root: Path) -> Table:
    """Figure 6a: one step over 1, 2, 4, 8 images."""
    found = turns(root, lambda s: s.scenario == "images" and s.plain)
    rows = [(n, attack, *leak(own)) for (n, attack), own in in_order(found, lambda t: (t.count, t.attack))]
    columns = ("images in the step", "attack", *LEAK)
    return Table("Figure 6a: by number of images in the step", columns, tuple(rows), noted(rows, _NOTE))


def figure_6b(root: Path) -> Table:
    """Figure 6b: one image, 1, 2, 4 local steps."""
    found = turns(root, lambda s: steps(s) is not None and s.plain)
    rows = [(k, attack, *leak(own)) for (k, attack), own in in_order(found, lambda t: (steps(t.setting), t.attack))]
    note = f"{_NOTE}; the paper adds an image with each step, here the same image is stepped on again"
    return Table("Figure 6b: by local steps", ("local steps", "attack", *LEAK), tuple(rows), noted(rows, note))


TABLES: dict[str, Callable[[Path], Table]] = {
    "gradient-inversion/4": figure_4,
    "gradient-inversion/5": figure_5,
    "gradient-inversion/6a": figure_6a,
    "gradient-inversion/6b": figure_6b,
    **NOISE,
}


def steps(setting: Setting) -> int | None:
    """The local steps of a scenario named "steps-K"."""
    found = re.fullmatch(r"steps-(\d+)", setting.scenario)
    return int(found[1]) if found else None
