"""The curves of paper 001's figures, and its Figure 10: embeddings of images and reconstructions in the plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leakline.papers.gradient_inversion import figures as figures_of
from leakline.papers.gradient_inversion import printed
from leakline.papers.gradient_inversion.means import Measured, accuracy, measured
from leakline.papers.gradient_inversion.noise import filtered, noisy
from leakline.papers.gradient_inversion.plane import figure_10
from leakline.papers.gradient_inversion.store import OURS, Turn, groups_of, in_order, risky, settings, turns
from leakline.papers.gradient_inversion.words import NOT_SAFE
from leakline.report.charts.chart import Chart, Series
from leakline.report.charts.static import svg

BAND = "band: 95 % t-interval over images, where there are several"
Points = Sequence[tuple[float, Measured | None]]


def charts(root: Path) -> dict[str, Chart]:
    """The figures that are curves, and Figure 10, to be drawn by `leakline.report.charts.static.svg`."""
    found: dict[str, Chart] = {}
    images = turns(root, lambda s: s.scenario == "images" and s.plain)
    found["fig6a"] = _by_attack("Figure 6a: by images in the step", "images in the step", images, lambda t: t.count)
    steps = turns(root, lambda s: figures_of.steps(s) is not None and s.plain)
    found["fig6b"] = _by_attack(
        "Figure 6b: by local steps", "local steps", steps, lambda t: figures_of.steps(t.setting)
    )
    noise = noisy(root, "nine-clients")
    found["fig6c"] = _by_attack(
        "Figure 6c: the high-risk client by noise", "sigma0", risky(noise), lambda t: t.setting.noise,
        f"the paper's prior has {printed.PRIOR_SSIM:g}",
    )  # fmt: skip
    main = leading(noise)
    found["fig8a"] = _by_client("Figure 8: RDLV by noise", "RDLV", main, "rdlv", "decoys (null)")
    found["fig8b"] = _accuracy(root)
    private = turns(root, lambda s: s.scenario == "dp-sgd")
    found["fig9"] = _by_attack(
        "Figure 9: RDLV under DP-SGD", "noise multiplier (0: none)", private, lambda t: t.setting.noise, measure="rdlv",
        baseline="decoys (null)",
    )  # fmt: skip
    if (plane := figure_10(root)) is not None:
        found["fig10"] = plane
    found["fig11"] = _by_client("Figure 11: IIP by noise", "IIP (the client's image)", main, "iip", "chance")
    found["fig11-exact"] = _by_client("Figure 11: IIP, the very image", "IIP (exact)", main, "iip-exact", "chance")
    found["fig11-cosine"] = _by_client("Figure 11: cosine to the nearest", "cosine", main, "cosine", "decoys")
    return found


def figures(root: Path) -> dict[str, str]:
    """Every chart as an SVG file, by name."""
    return {name: svg(chart, name) for name, chart in charts(root).items() if chart.series}


def leading(found: Sequence[Turn]) -> list[Turn]:
    """The turns of our attack, or of the first that was run."""
    first = next((a for a in (OURS, *(t.attack for t in found)) if any(t.attack == a for t in found)), "")
    return [t for t in found if t.attack == first]


def _by_attack(
    title: str,
    x: str,
    found: Sequence[Turn],
    key: Callable[[Turn], Any],
    note: str = "",
    measure: str = "ssim",
    baseline: str = "prior",
) -> Chart:
    """One line for each attack, and the baseline of the leading one."""
    series = []
    for style, (attack, own) in enumerate(groups_of(found, lambda t: t.attack).items()):
        series.append(line(attack, style, [(float(at), measured(some, measure)) for at, some in in_order(own, key)]))
    points = [(float(at), measured(some, measure)) for at, some in in_order(leading(found), key)]
    series.append(_flat(baseline, len(series), points))
    name = "SSIM" if measure == "ssim" else measure.upper()
    words = "; ".join(text for text in (note, BAND, NOT_SAFE) if text)
    return Chart(title, x, name, tuple(s for s in series if s.x), note=words)


def _by_client(title: str, y: str, found: Sequence[Turn], measure: str, baseline: str) -> Chart:
    """One line for each client over sigma0, and the mean baseline of all."""
    series = []
    for style, (client, own) in enumerate(in_order(found, lambda t: t.client)):
        points = [(x, measured(some, measure)) for x, some in in_order(own, lambda t: t.setting.noise)]
        series.append(line(client, style, points))
    every = [(x, measured(some, measure)) for x, some in in_order(found, lambda t: t.setting.noise)]
    series.append(_flat(f"{baseline}, mean over images", len(series), every))
    return Chart(title, "sigma0", y, tuple(s for s in series if s.x), note=f"{BAND}; {NOT_SAFE}")


def _accuracy(root: Path) -> Chart:
    every = filtered(settings(root))
    series: list[Series] = []
    for scenario in dict.fromkeys(s.scenario for s in every):
        here = [s for s in every if s.scenario == scenario]
        levels = sorted({s.noise for s in here})
        points = [(x, accuracy([s for s in here if s.noise == x])) for x in levels]
        series.append(line(scenario, len(series), points))
        without = dict(points).get(0.0)
        if without is not None:
            flat = tuple(without.value for _ in levels)
            series.append(Series(f"{scenario}, without noise", len(series), tuple(levels), flat))
        series.append(_flat(f"{scenario}, commonest class", len(series), points))
    kept = tuple(s for s in series if s.x)
    note = "after the last round, on the server's test images; band: 95 % interval, or the seeds' range"
    return Chart("Figure 8: test accuracy by noise", "sigma0", "accuracy", kept, note=note, y_range=(0.0, 1.0))


def line(name: str, style: int, points: Points) -> Series:
    """Means with a band, which is as thin as the line where there is no interval."""
    kept = [(x, m) for x, m in points if m is not None]
    banded = any(m.low is not None and m.high is not None for _, m in kept)
    return Series(
        name, style, tuple(x for x, _ in kept), tuple(m.value for _, m in kept),
        tuple(m.value if m.low is None else m.low for _, m in kept) if banded else (),
        tuple(m.value if m.high is None else m.high for _, m in kept) if banded else (),
    )  # fmt: skip


def _flat(name: str, style: int, points: Points) -> Series:
    kept = [(x, m.chance) for x, m in points if m is not None and m.chance is not None]
    return Series(name, style, tuple(x for x, _ in kept), tuple(y for _, y in kept))
