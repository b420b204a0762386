"""What paper 001 prints and concludes, claim by claim, with what was measured here beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import mean

from leakline.papers.gradient_inversion import printed
from leakline.papers.gradient_inversion.figures import by_noise
from leakline.papers.gradient_inversion.means import NOT_SAFE, Measured, cost, measured, paired
from leakline.papers.gradient_inversion.turns import HIGH_RISK, OURS, Turn, in_order, noisy, of, turns
from leakline.results import Results, table
from leakline.results.table import Table

NOT_RUN = "not run"


@dataclass(frozen=True)
class Claim:
    """What the paper prints or concludes, what was measured of it, and whether that agrees."""

    what: str
    paper: str
    ours: str = NOT_RUN
    agrees: str = ""
    seeds: int | None = None
    """Of the figure of ours that has the fewest."""


def claims(results: Results) -> list[Claim]:
    """The paper's headline numbers and conclusions beside ours."""
    noise = of(noisy(results, "nine-clients"), OURS)
    free = turns(results, lambda s: s.plain)
    return [
        _prior([t for t in noise if t.case.plain]), *_high_risk(noise), _others(noise), _others_identified(noise),
        *_failing(free, turns(results, lambda s: s.defence == "fedbn")), _images(free), _steps(free), _phase(free),
        _accuracy(results), _dp_sgd(turns(results, lambda s: s.scenario == "dp-sgd" and s.kind == "dp-sgd")),
    ]  # fmt: skip


def headline(results: Results) -> Table:
    """The claims as a table; "agrees" only where ours can tell."""
    note = (
        f"ours: {OURS} unless said; [95 % interval over images, or over draws of people if wider]; agrees: yes or no "
        "where the whole interval (of one image: its value) lies on one side, else open; clearest: the interval of all "
        f"that begins highest; seeds: of the figure that has the fewest; {NOT_SAFE}"
    )
    columns = ("claim", "paper", "ours", "agrees", "seeds")
    rows = tuple((c.what, c.paper, c.ours, c.agrees, c.seeds) for c in claims(results))
    return Table("The paper's numbers and conclusions beside ours", columns, rows, note)


def side(found: Measured | None, above: bool, line: float = 0.0) -> str:
    """Whether a mean lies above a line, or not above it, as claimed: yes, no, or open."""
    if found is None:
        return ""
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    if low > line or high <= line:
        return "yes" if (low > line) == above else "no"
    return "open"


def _agrees(found: Measured | None, above: bool) -> str:
    """The same, saying where a single image decided."""
    return side(found, above) + _alone(found)


def _alone(found: Measured | None) -> str:
    return " (one image)" if found is not None and found.images == 1 else ""


def _all(sides: Sequence[str]) -> str:
    return "no" if "no" in sides else "open" if "open" in sides else "yes"


def _fewest(figures: Iterable[Measured]) -> int:
    return min(figure.seeds for figure in figures)


def _prior(found: Sequence[Turn]) -> Claim:
    claim = "SSIM of the prior and client 9's image", f"{printed.PRIOR_SSIM:g}"
    ssim = measured([t for t in found if t.client == HIGH_RISK], "ssim")
    if ssim is None or ssim.chance is None:
        return Claim(*claim)
    images = "another image" if ssim.images == 1 else "other images"
    return Claim(*claim, f"{ssim.chance:.3f} (n = {ssim.images}, {images})", seeds=ssim.seeds)


def _high_risk(noise: Sequence[Turn]) -> list[Claim]:
    own = [t for t in noise if t.client == HIGH_RISK]
    rdlv, iip = _curve(own, "rdlv"), _curve(own, "iip")
    leaks = Claim("client 9 leaks (RDLV above 0)", f"up to sigma0 of about {printed.SAFE_SIGMA0}")
    found = Claim("client 9's image is identified (IIP 1.0)", f"up to sigma0 of about {printed.IDENTIFIED_SIGMA0}")
    if (first := rdlv.get(0.0)) is not None:
        sure = {x: m.low for x, m in rdlv.items() if m.low is not None}
        whole = f", with its whole interval {until(sure, 0.0)}" if len(sure) == len(rdlv) else ""
        ours = f"{until(_values(rdlv), 0.0)}{whole}; without noise {shown(first)}"
        leaks = replace(leaks, ours=ours, agrees=_agrees(first, above=True), seeds=_fewest(rdlv.values()))
    if (start := iip.get(0.0)) is not None:
        chance = "" if start.chance is None else f", chance {start.chance:.3g}"
        ours = f"{until(_values(iip), 1 - 1e-9)}; without noise {start.value:.3g}{chance}, n = {start.images}"
        agrees = "yes" if start.value > 1 - 1e-9 else "no"
        found = replace(found, ours=ours, agrees=agrees + _alone(start), seeds=_fewest(iip.values()))
    return [leaks, found]


def _others(noise: Sequence[Turn]) -> Claim:
    claim = "all other clients do not leak (RDLV below 0 within the interval), whatever sigma0", "8 of 8 clients"
    other = [t for t in noise if t.client != HIGH_RISK]
    cells = {k: m for k, own in in_order(other, lambda t: (t.client, t.case.noise)) if (m := measured(own, "rdlv"))}
    if not cells:
        return Claim(*claim)
    sides = [side(m, above=False) for m in cells.values()]
    (client, sigma0), top = clearest(cells)
    attacked = f"{len({client for client, _ in cells})} of {len(printed.CLIENTS) - 1} clients attacked"
    below = f"{sides.count('yes')} of {len(cells)} pairs (client, sigma0) below, {attacked}"
    ours = f"{below}; clearest: {client} at sigma0 = {sigma0:g}: {shown(top)}"
    return Claim(*claim, ours, _all(sides), _fewest(cells.values()))


def _others_identified(noise: Sequence[Turn]) -> Claim:
    paper = f"below {printed.OTHERS_IIP:g} (chance for 512 of {printed.POOL:,} images: {printed.chance_of(512):.0%})"
    claim = "other clients are hardly identified (IIP), with noise"
    other = [t for t in noise if t.client != HIGH_RISK and t.case.noise > 0]
    cells = {k: m for k, own in in_order(other, lambda t: (t.client, t.case.noise)) if (m := measured(own, "iip"))}
    if not cells:
        return Claim(claim, paper)
    (client, sigma0), top = clearest(cells)
    chance = "" if top.chance is None else f", chance {top.chance:.3g}"
    ours = f"clearest: {client} at sigma0 = {sigma0:g}: {top.value:.3g} {top.interval}{chance} (n = {top.images})"
    sides = [side(m, above=False, line=printed.OTHERS_IIP) for m in cells.values()]
    return Claim(claim, paper, ours, _all(sides), _fewest(cells.values()))


def clearest(cells: Mapping[tuple[str, float], Measured]) -> tuple[tuple[str, float], Measured]:
    """The client and the noise whose interval begins highest: what decides against a claim that all lie below."""
    return max(cells.items(), key=lambda cell: cell[1].value if cell[1].low is None else cell[1].low)


def _failing(free: Sequence[Turn], unsent: Sequence[Turn]) -> list[Claim]:
    """What the paper says an attack needs, by the attacks that go without, on each network."""
    alone = [t for t in free if t.case.scenario in ("one-image", "smooth")]
    without = {
        "an attack that ignores BatchNorm's statistics fails": of(alone, "geiping"),
        "an attacker without the weights that were sent fails": of(alone, "wrong-checkpoint"),
        "the attack fails when BatchNorm's statistics are not sent": [
            *of(alone, "no-statistics"), *(t for t in of(unsent, OURS) if t.count == 1),
        ],
    }  # fmt: skip
    found = []
    for what, own in without.items():
        claim = Claim(what, "it fails (Fig. 3)")
        cells = {
            place: m
            for place, some in in_order(own, lambda t: (t.case.network, t.case.defence, t.attack))
            if (m := measured(some, "rdlv"))
        }
        if cells:
            ours = "; ".join(f"{_who(by, defence)} on {net}: {shown(m)}" for (net, defence, by), m in cells.items())
            agrees = _all([side(m, above=False) for m in cells.values()])
            claim = replace(claim, ours=ours, agrees=agrees, seeds=_fewest(cells.values()))
        found.append(claim)
    return found


def _who(attack: str, defence: str) -> str:
    return attack if defence == "none" else f"{attack} under {defence}"


def _images(free: Sequence[Turn]) -> Claim:
    claim = "more images in a step leak less", "SSIM falls (Fig. 6a)"
    own = [t for t in of(free, OURS) if t.case.scenario == "images"]
    found = {count: m for count, some in in_order(own, lambda t: t.count) if (m := measured(some, "rdlv"))}
    if len(found) < 2:
        return Claim(*claim)
    few, many = found[min(found)], found[max(found)]
    ours = "; ".join(f"{count}: {shown(m)}" for count, m in found.items())
    low, high = (few.low if few.low is not None else few.value), (many.high if many.high is not None else many.value)
    agrees = "yes" if high < low else "no" if many.value >= few.value else "open"
    return Claim(*claim, f"RDLV by images: {ours}", agrees, _fewest(found.values()))


def _steps(free: Sequence[Turn]) -> Claim:
    claim = "more local steps leak less", "SSIM falls (Fig. 6b)"
    own = [t for t in of(free, OURS) if t.case.scenario in ("steps-1", "steps-4")]
    late, early = ([t for t in own if t.case.scenario == name] for name in ("steps-4", "steps-1"))
    gap = paired(late, early, "rdlv")
    if gap is None:
        return Claim(*claim)
    ours = f"RDLV at 4 steps minus at 1, same images: {shown(gap.difference)}"
    return Claim(*claim, ours, _agrees(gap.difference, above=False), gap.difference.seeds)


def _phase(free: Sequence[Turn]) -> Claim:
    claim = "later rounds leak more", "better images in round 90 than 10 (Fig. 4, 5)"
    own = [t for t in of(free, OURS) if t.case.scenario == "phase"]
    rounds = sorted({t.round for t in own})
    if len(rounds) < 2:
        return Claim(*claim)
    late, early = ([t for t in own if t.round == index] for index in (rounds[-1], rounds[0]))
    gap = paired(late, early, "rdlv", same=lambda t: (t.place[0], t.client))
    if gap is None:
        return Claim(*claim)
    ours = f"RDLV in round {rounds[-1] + 1} minus {rounds[0] + 1}, same images: {shown(gap.difference)}"
    return Claim(*claim, ours, _agrees(gap.difference, above=True), gap.difference.seeds)


def _accuracy(results: Results) -> Claim:
    """What the filter's noise costs at the end of a training of many rounds, and on the way there."""
    claim = "the model is less accurate the more noise there is", "accuracy drops (Fig. 8)"
    levels = {x: own for x, own in by_noise(results).get("utility", {}).items() if own}
    free = levels.pop(0.0, [])
    found = {x: ends for x, own in levels.items() if (ends := cost(own, free)) is not None}
    if not found:
        return Claim(*claim)
    most = max(found)
    rounds = max(case.cell.rounds for case in free)
    after = "; ".join(f"sigma0 = {x:g}: {table.shown(ends)}" for x, ends in found.items())
    way = table.shown(cost(levels[most], free, mean))
    ours = f"after {rounds} rounds, less that without noise: {after}; mean over all rounds at {most:g}: {way}"
    ends = found[most]
    agrees = "open" if ends.low is None else side(Measured(ends.mean, ends.low, ends.high, 0), above=False)
    return Claim(*claim, ours, agrees, ends.seeds)


def _dp_sgd(found: Sequence[Turn]) -> Claim:
    claim = "DP-SGD stops the leak (RDLV below 0)", "at every noise multiplier (Fig. 9)"
    cells = {k: m for k, own in in_order(found, lambda t: (t.case.noise, t.attack)) if (m := measured(own, "rdlv"))}
    if not cells:
        return Claim(*claim)
    ours = "; ".join(f"{z:g} ({attack}): {shown(m)}" for (z, attack), m in cells.items())
    sides = [side(m, above=False) for m in cells.values()]
    return Claim(*claim, ours, _all(sides), _fewest(cells.values()))


def shown(found: Measured) -> str:
    """A mean with its interval and its number of images."""
    null = "" if found.chance is None else f", null {found.chance:+.3f}"
    span = f"({found.interval})" if found.low is None else found.interval
    return f"{found.value:+.3f} {span}{null}, n = {found.images}"


def _curve(own: Sequence[Turn], measure: str) -> Mapping[float, Measured]:
    return {x: m for x, some in in_order(own, lambda t: t.case.noise) if (m := measured(some, measure)) is not None}


def _values(curve: Mapping[float, Measured]) -> dict[float, float]:
    return {x: m.value for x, m in curve.items()}


def until(curve: Mapping[float, float], least: float) -> str:
    """Up to which noise a curve stays above a value, from no noise on."""
    levels = list(takewhile(lambda x: curve[x] > least, sorted(curve)))
    if not levels:
        return "not even without noise"
    return f"up to sigma0 = {levels[-1]:g}" + (" (the largest run)" if len(levels) == len(curve) else "")
