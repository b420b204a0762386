"""Figures 4 to 9 and 11 of paper 001 as numbers: by client, round, images and local steps, and what noise does.

In the paper, Figure 8a is chest X-rays and 8b fundus images, each with RDLV and accuracy; here `8a` is RDLV and `8b`
accuracy, of every scenario that was run with the filter. Figure 10 is a picture only (`charts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

from leakline.papers.gradient_inversion import printed
from leakline.papers.gradient_inversion.means import (
    IMAGES,
    LEAK,
    NOT_SAFE,
    Measured,
    accuracy,
    chance,
    cost,
    interval,
    leak,
    measured,
    noted,
    p_values,
    value,
)
from leakline.papers.gradient_inversion.turns import Case, Turn, cases, filtered, in_order, noisy, risky, turns
from leakline.report.papers import Tables
from leakline.results import Results
from leakline.results.table import Table

_NOTE = f"{IMAGES}; {NOT_SAFE}"
_DP = "the filter promises nothing (its noise follows the update's own size): sigma0 is no epsilon"


def figure_4(results: Results) -> Table:
    """Figure 4: what each client's update gave away, early and late in training."""
    found = turns(results, lambda s: s.scenario in ("phase", "nine-clients") and s.plain)
    columns = ("scenario", "client", "round", "attack")
    title = "Figure 4: inversions by client and round"
    return _leaks(title, columns, found, lambda t: (t.case.scenario, t.client, t.round + 1, t.attack))


def figure_5(results: Results) -> Table:
    """Figure 5: the clients with one image by training phase, with the length of their updates."""
    plain = turns(results, lambda s: s.plain)
    found = [t for name in ("phase", "fundus") for t in risky([t for t in plain if t.case.scenario == name])]
    rows = []
    for (scenario, index, attack), own in in_order(found, lambda t: (t.case.scenario, t.round, t.attack)):
        updates = [t.case.cell.kept(t.round, t.client) for t in own]
        norms = [update.norm for update in updates if update is not None]
        rate = own[0].case.plan(own[0].client).rate(index)
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


def figure_6a(results: Results) -> Table:
    """Figure 6a: one step over 1, 2, 4, 8 images."""
    found = turns(results, lambda s: s.scenario == "images" and s.plain)
    title = "Figure 6a: by number of images in the step"
    return _leaks(title, ("images in the step", "attack"), found, lambda t: (t.count, t.attack))


def figure_6b(results: Results) -> Table:
    """Figure 6b: K local steps, over one image again and again, and over K different ones."""
    found = turns(results, lambda s: (steps(s) is not None or s.scenario == "different") and s.plain)

    def place(turn: Turn) -> tuple[Any, ...]:
        again = steps(turn.case)
        return ("different images", turn.count, turn.attack) if again is None else ("the same", again, turn.attack)

    note = f"{_NOTE}; the paper adds an image with each step: that is a step for each of K different images"
    return _leaks("Figure 6b: by local steps", ("steps over", "local steps", "attack"), found, place, note)


def figure_6c(results: Results) -> Table:
    """Figure 6c: SSIM of the high-risk client's image by noise."""
    found = risky(noisy(results, "nine-clients"))
    rows = []
    for (sigma0, attack), own in in_order(found, lambda t: (t.case.noise, t.attack)):
        here = measured(own, "ssim")
        if here is not None:
            clear = "" if here.chance is None else here.value > here.chance
            rows.append((sigma0, attack, here.value, here.interval, here.chance, clear, here.images))
    columns = ("sigma0", "attack", "SSIM", "95 % interval", "SSIM of the prior", "above the prior", "n")
    note = f"the paper's prior has {printed.PRIOR_SSIM:g}; not above the prior is no proof of safety; {_DP}"
    return Table("Figure 6c: SSIM of the high-risk client by noise", columns, tuple(rows), noted(rows, note))


def figure_7(results: Results) -> Table:
    """Figure 7: SSIM of each client's images without noise, the prior's beside it, and where noise brings it down."""
    found = noisy(results, "nine-clients")
    rows = []
    for (client, attack), own in in_order(found, lambda t: (t.client, t.attack)):
        curve = {sigma0: measured(some, "ssim") for sigma0, some in in_order(own, lambda t: t.case.noise)}
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


def figure_8a(results: Results) -> Table:
    """Figure 8: RDLV by noise and client."""
    rows = []
    for (scenario, sigma0, client, attack), own in in_order(
        noisy(results), lambda t: (t.case.scenario, t.case.noise, t.client, t.attack)
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


def figure_8b(results: Results) -> Table:
    """Figure 8: test accuracy by noise, against that without noise and against guessing the commonest class."""
    rows = []
    for scenario, levels in by_noise(results).items():
        free = levels.get(0.0, [])
        for sigma0, own in levels.items():
            here = accuracy(own)
            if here is not None:
                change = [cost(own, free, of) if sigma0 else None for of in (last, mean)]
                rows.append((scenario, sigma0, here.value, here.interval, *change, here.chance, here.images))
    columns = (
        "scenario", "sigma0", "accuracy", "95 % interval", "less that at sigma0 = 0", "the same over all rounds",
        "commonest class", "n",
    )  # fmt: skip
    note = (
        "after the last round, of the server's test images (n); interval: exact binomial of one seed, of several seeds "
        "the lowest and highest; differences: paired by seed, with their t-interval over seeds, after the last round "
        "and of the mean over all rounds; the paper takes the best round by validation"
    )
    return Table("Figure 8: test accuracy by noise", columns, tuple(rows), noted(rows, note))


def by_noise(results: Results) -> dict[str, dict[float, list[Case]]]:
    """The cases of scenarios that ran the filter, by scenario and sigma0."""
    found: dict[str, dict[float, list[Case]]] = {}
    for case in sorted(filtered(results), key=lambda case: case.noise):
        found.setdefault(case.scenario, {}).setdefault(case.noise, []).append(case)
    return {scenario: found[scenario] for scenario in dict.fromkeys(case.scenario for case in filtered(results))}


def last(every: Sequence[float]) -> float:
    """After the last round."""
    return every[-1]


def figure_9(results: Results) -> Table:
    """Figure 9: the one-image clients under DP-SGD, with the promise of each setting."""
    found = turns(results, lambda s: s.scenario == "dp-sgd")
    every = [s for s in cases(results) if s.scenario == "dp-sgd"]
    rows = []
    for (kind, z, name, attack), own in in_order(
        found, lambda t: (t.case.kind == "dp-sgd", t.case.noise, t.case.defence, t.attack)
    ):
        here = [s for s in every if (s.kind == "dp-sgd", s.noise, s.defence) == (kind, z, name)]
        cost, again = accuracy(here), measured(own, "iip-exact")
        rows.append((
            z if kind else "no DP-SGD", name, _epsilon(here), attack, *leak(own), value(again), interval(again),
            value(cost), interval(cost),
        ))  # fmt: skip
    columns = (
        "noise multiplier", "setting", "epsilon", "attack", *LEAK, "found again", "found again 95 %", "accuracy",
        "accuracy 95 %",
    )  # fmt: skip
    note = (
        f"{_NOTE}; epsilon: of one record against the server, from the card; with GroupNorm: the paper's BatchNorm has "
        "no promise under DP-SGD, since examples of a batch mix"
    )
    return Table("Figure 9: RDLV under DP-SGD", columns, tuple(rows), noted(rows, note))


def figure_11(results: Results) -> Table:
    """Figure 11: whether a reconstruction's nearest image is the client's, or the very one, by noise."""
    rows = []
    for (scenario, sigma0, client, attack), own in in_order(
        noisy(results), lambda t: (t.case.scenario, t.case.noise, t.client, t.attack)
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


FIGURES: Tables = {
    f"gradient-inversion/{name}": make
    for name, make in {
        "4": figure_4, "5": figure_5, "6a": figure_6a, "6b": figure_6b, "6c": figure_6c, "7": figure_7,
        "8a": figure_8a, "8b": figure_8b, "9": figure_9, "11": figure_11,
    }.items()
}  # fmt: skip


def _leaks(
    title: str, columns: tuple[str, ...], found: Sequence[Turn], key: Callable[[Turn], Any], note: str = _NOTE
) -> Table:
    """What turns give away, by a key."""
    rows = tuple((*place, *leak(same)) for place, same in in_order(found, key))
    return Table(title, (*columns, *LEAK), rows, noted(rows, note))


def steps(case: Case) -> int | None:
    """The local steps of a scenario named "steps-K"."""
    found = re.fullmatch(r"steps-(\d+)", case.scenario)
    return int(found[1]) if found else None


def _epsilon(found: Sequence[Case]) -> Any:
    """The weakest promise over seeds."""
    known = [p.epsilon for s in found if s.cell.card for p in s.cell.card.leading if p.epsilon is not None]
    return max(known) if known else "none"


def _with_p(here: Measured | None, own: Sequence[Turn], measure: str) -> tuple[Any, ...]:
    return value(here), interval(here), chance(here), p_values(own, measure)
