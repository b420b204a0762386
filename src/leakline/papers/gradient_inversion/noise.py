"""Figures 6c, 7, 8, 9 and 11 of paper 001 as numbers: what noise does to leaks and to accuracy.

In the paper, Figure 8a is chest X-rays and 8b fundus images, each with RDLV and accuracy; here `8a` is RDLV and `8b`
accuracy, of every scenario that was run with the filter. Figure 10 is a picture only (`paper_001_charts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leakline.papers.gradient_inversion import printed
from leakline.papers.gradient_inversion.means import Measured, accuracy, measured, p_values
from leakline.papers.gradient_inversion.store import Setting, Turn, in_order, risky, settings, turns
from leakline.papers.gradient_inversion.words import IMAGES, LEAK, NOT_SAFE, chance, interval, leak, noted, value
from leakline.results.table import Table

_NOTE = f"{IMAGES}; {NOT_SAFE}"
_DP = "the filter promises nothing (its noise follows the update's own size): sigma0 is no epsilon"


def figure_6c(root: Path) -> Table:
    """Figure 6c: SSIM of the high-risk client's image by noise."""
    found = risky(noisy(root, "nine-clients"))
    rows = []
    for (sigma0, attack), own in in_order(found, lambda t: (t.setting.noise, t.attack)):
        here = measured(own, "ssim")
        if here is not None:
            clear = "" if here.chance is None else here.value > here.chance
            rows.append((sigma0, attack, here.value, here.interval, here.chance, clear, here.images))
    columns = ("sigma0", "attack", "SSIM", "95 % interval", "SSIM of the prior", "above the prior", "n")
    note = f"the paper's prior has {printed.PRIOR_SSIM:g}; not above the prior is no proof of safety; {_DP}"
    return Table("Figure 6c: SSIM of the high-risk client by noise", columns, tuple(rows), noted(rows, note))


def figure_7(root: Path) -> Table:
    """Figure 7: SSIM of each client's images without noise, the prior's beside it, and where noise brings it down."""
    found = noisy(root, "nine-clients")
    rows = []
    for (client, attack), own in in_order(found, lambda t: (t.client, t.attack)):
        curve = {sigma0: measured(some, "ssim") for sigma0, some in in_order(own, lambda t: t.setting.noise)}
        clear = curve.get(0.0)
        if clear is not None:
            down = next((x for x, m in curve.items() if m and m.chance is not None and m.value <= m.chance), None)
            top = "" if down is None else f"sigma0 = {down:g}"
            rows.append((
                client, attack, clear.value, clear.interval, clear.chance, top or f"never up to {max(curve):g}",
                clear.images,
            ))  # fmt: skip
    columns = (
        "client", "attack", "SSIM without noise", "95 % interval", "SSIM of the prior", "first at or below the prior",
        "n",
    )  # fmt: skip
    note = (
        f"client 9 in the paper: the prior has {printed.PRIOR_SSIM:g}, reached at sigma = 0.01, which is another scale "
        "than sigma0; at or below the prior is no proof of safety"
    )
    return Table("Figure 7: SSIM against the prior, by client", columns, tuple(rows), noted(rows, note))


def figure_8a(root: Path) -> Table:
    """Figure 8: RDLV by noise and client."""
    rows = []
    for (scenario, sigma0, client, attack), own in in_order(
        noisy(root), lambda t: (t.setting.scenario, t.setting.noise, t.client, t.attack)
    ):
        here = measured(own, "rdlv")
        if here is not None:
            p = p_values(own, "rdlv")
            rows.append((scenario, sigma0, client, attack, here.value, here.interval, here.chance, p, here.images))
    columns = ("scenario", "sigma0", "client", "attack", "RDLV", "95 % interval", "null", "p", "n")
    note = (
        f"{_NOTE}; the paper: client 9 above 0 up to sigma0 of about {printed.SAFE_SIGMA0}, all others below 0; {_DP}"
    )
    return Table("Figure 8: RDLV by noise and client", columns, tuple(rows), noted(rows, note))


def figure_8b(root: Path) -> Table:
    """Figure 8: test accuracy by noise, against that without noise and against guessing the commonest class."""
    every = filtered(settings(root))
    rows = []
    for scenario in dict.fromkeys(s.scenario for s in every):
        levels = sorted({s.noise for s in every if s.scenario == scenario})
        found = {x: accuracy([s for s in every if (s.scenario, s.noise) == (scenario, x)]) for x in levels}
        for sigma0, here in found.items():
            if here is not None:
                base = value(found.get(0.0))
                rows.append((scenario, sigma0, here.value, here.interval, base, here.chance, here.images))
    columns = ("scenario", "sigma0", "accuracy", "95 % interval", "accuracy at sigma0 = 0", "commonest class", "n")
    note = (
        "after the last round, of the server's test images (n); interval: exact binomial of one seed, of several seeds "
        "the lowest and highest; the paper takes the best round by validation"
    )
    return Table("Figure 8: test accuracy by noise", columns, tuple(rows), noted(rows, note))


def figure_9(root: Path) -> Table:
    """Figure 9: the one-image clients under DP-SGD, with the promise of each setting."""
    found = turns(root, lambda s: s.scenario == "dp-sgd")
    every = [s for s in settings(root) if s.scenario == "dp-sgd"]
    rows = []
    for (kind, z, attack), own in in_order(found, lambda t: (t.setting.kind == "dp-sgd", t.setting.noise, t.attack)):
        here = [s for s in every if (s.kind == "dp-sgd", s.noise) == (kind, z)]
        cost = accuracy(here)
        rows.append((z if kind else "no DP-SGD", _epsilon(here), attack, *leak(own), value(cost), interval(cost)))
    columns = ("noise multiplier", "epsilon", "attack", *LEAK, "accuracy", "accuracy 95 %")
    note = (
        f"{_NOTE}; epsilon: of one record against the server, from the card; with GroupNorm: the paper's BatchNorm has "
        "no promise under DP-SGD, since examples of a batch mix"
    )
    return Table("Figure 9: RDLV under DP-SGD", columns, tuple(rows), noted(rows, note))


def figure_11(root: Path) -> Table:
    """Figure 11: whether a reconstruction's nearest image is the client's, or the very one, by noise."""
    rows = []
    for (scenario, sigma0, client, attack), own in in_order(
        noisy(root), lambda t: (t.setting.scenario, t.setting.noise, t.client, t.attack)
    ):
        same, exact, cosine = (measured(own, m) for m in ("iip", "iip-exact", "cosine"))
        if same is not None or exact is not None:
            rows.append((
                scenario, sigma0, client, attack, *_with_p(same, own, "iip"), *_with_p(exact, own, "iip-exact"),
                value(cosine), interval(cosine), chance(cosine), (same or exact or cosine).images,  # type: ignore[union-attr]
            ))  # fmt: skip
    columns = (
        "scenario", "sigma0", "client", "attack", "IIP (the client's)", "95 % interval", "chance", "p",
        "IIP (the very image)", "95 % of exact", "chance of exact", "p of exact", "cosine", "95 % of cosine",
        "cosine of decoys", "n",
    )  # fmt: skip
    big = printed.chance_of(512)
    note = (
        f"the paper: 1.0 for client 9 up to sigma0 of about {printed.IDENTIFIED_SIGMA0}, others below "
        f"{printed.OTHERS_IIP:g}; by chance alone a client with 512 of the paper's {printed.POOL:,} images has "
        f"{big:.0%}, so that below "
        f"{printed.OTHERS_IIP:g} is less than chance; p: permutations; an interval of one "
        "point says only that all images agree; IIP at chance is no proof of safety"
    )
    return Table("Figure 11: image identifiability by noise and client", columns, tuple(rows), noted(rows, note))


TABLES: dict[str, Callable[[Path], Table]] = {
    "gradient-inversion/6c": figure_6c,
    "gradient-inversion/7": figure_7,
    "gradient-inversion/8a": figure_8a,
    "gradient-inversion/8b": figure_8b,
    "gradient-inversion/9": figure_9,
    "gradient-inversion/11": figure_11,
}


def filtered(every: Sequence[Setting]) -> list[Setting]:
    """The settings of scenarios that ran the filter: with it, and without any defence, which is sigma0 = 0."""
    used = {s.scenario for s in every if s.kind == "sigma0"}
    return [s for s in every if s.scenario in used and s.kind in ("sigma0", "none")]


def noisy(root: Path, scenario: str = "") -> list[Turn]:
    """The attacked turns of those settings."""
    keys = {(s.scenario, s.cell.key) for s in filtered(settings(root)) if scenario in ("", s.scenario)}
    return turns(root, lambda s: (s.scenario, s.cell.key) in keys)


def _epsilon(found: Sequence[Setting]) -> Any:
    """The weakest promise over seeds."""
    known = [p.epsilon for s in found if s.cell.card for p in s.cell.card.leading if p.epsilon is not None]
    return max(known) if known else "none"


def _with_p(here: Measured | None, own: Sequence[Turn], measure: str) -> tuple[Any, ...]:
    return value(here), interval(here), chance(here), p_values(own, measure)
