"""Tables I and II and Figure 3 of paper 001 (gradient inversion), its mitigations, and its conclusions beside ours.

`gradient-inversion/1` and so on of `leakline export RUN --table ...`, of a run of the study `gradient-inversion`. What
was not run has no row. Figures by client, round and noise are in `figures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakline.papers.gradient_inversion import printed
from leakline.papers.gradient_inversion.claims import headline
from leakline.papers.gradient_inversion.means import (
    IMAGES,
    LEAK,
    NOT_SAFE,
    accuracy,
    interval,
    leak,
    measured,
    noted,
    p_values,
    paired,
    value,
)
from leakline.papers.gradient_inversion.turns import HIGH_RISK, OURS, Case, Turn, cases, of, turns
from leakline.report.papers import Tables
from leakline.results import Results
from leakline.results.settings import groups_of
from leakline.results.table import Table

SIDE_BY_SIDE = (OURS, "geiping", "bn-only", "dlg")
PLACES = {
    "one-image": "one image, one step",
    "smooth": "one image, one step, smooth network",
    "steps-4": "one image, 4 steps, smooth network",
}
"""Where Table I compares methods, by scenario."""


def table_1(results: Results) -> Table:
    """Table I: what each method takes and recovers to the paper, and what ours like it recovered here."""
    found = turns(results, lambda s: s.scenario in PLACES and s.plain)
    rows = []
    for method in printed.METHODS:
        for attack in method.ours or ("",):
            row: list[Any] = [method.name, method.takes, method.says, attack or "none of its own"]
            for scenario in PLACES:
                own = [t for t in of(found, attack) if t.case.scenario == scenario]
                here = measured(own, "rdlv")
                if here is None:
                    row += ["not run", "", None, "", None]
                else:
                    row += [here.value, here.interval, here.chance, p_values(own, "rdlv"), here.images]
            rows.append(tuple(row))
    columns = ["method", "takes", "the paper says", "attack here"]
    for place in PLACES.values():
        columns += [f"{what}, {place}" for what in ("RDLV", "95 %", "null", "p of single updates", "n")]
    return Table("Table I: methods, and what they got here", tuple(columns), tuple(rows), f"{IMAGES}; {NOT_SAFE}")


def table_2(results: Results) -> Table:
    """Table II: batch, images and local steps of each client, the paper's beside ours."""
    there = [s for s in cases(results) if s.scenario in ("nine-clients", "phase")]
    chosen = min(there, key=lambda s: s.scenario, default=None)
    rows = []
    if chosen is not None:
        attacked = {t.client for t in turns(results, lambda s: s.scenario == chosen.scenario)}
        paper = {client.name: client for client in printed.CLIENTS}
        for name, train, test in chosen.holders:
            his = paper.get(name)
            plan = chosen.plan(name)
            sent = chosen.cell.kept(0, name)
            rows.append((
                name, his and his.batch, min(plan.batch or train, train), his and his.images, train, his and his.steps,
                sent.steps if sent else train and plan.steps_of(train), his and printed.VALIDATION, test,
                name in attacked,
            ))  # fmt: skip
    columns = (
        "client", "batch (paper)", "batch (ours)", "images (paper)", "images (ours)", "steps per round (paper)",
        "steps per round (ours)", "validation (paper)", "own test (ours)", "attacked",
    )  # fmt: skip
    note = noted(rows, "steps: as the clients counted them where updates were kept, else by the plan")
    return Table("Table II: clients", columns, tuple(rows), note)


def figure_3(results: Results) -> Table:
    """Figure 3: what the attack needs: each attack on the one-image clients, without a defence."""
    found = turns(results, lambda s: s.scenario == "one-image" and s.plain)
    rows = []
    for attack, own in groups_of(found, lambda t: t.attack).items():
        effort = [t.effort for t in own if t.effort is not None]
        rows.append((
            attack, printed.LACKS.get(attack), *leak(own), _mean([e[0] for e in effort]), _mean([e[1] for e in effort]),
        ))  # fmt: skip
    columns = ("attack", "lacks", *LEAK, "iterations", "minutes")
    note = noted(rows, f"{IMAGES}; iterations and minutes: mean of one image's; {NOT_SAFE}")
    return Table("Figure 3: success factors, one image and one step", columns, tuple(rows), note)


def networks(results: Results) -> Table:
    """A narrow ResNet, a smooth network and a trained ResNet-18: attacks side by side, by image and on average."""
    found = turns(results, lambda s: s.scenario in ("one-image", "smooth", "trained") and s.plain)
    found = [t for t in found if t.attack in SIDE_BY_SIDE]
    rows = []
    for (scenario, network), here in groups_of(found, lambda t: (t.case.scenario, t.case.network)).items():
        for attack, own in groups_of(here, lambda t: t.attack).items():
            rows.append((scenario, network, "mean over images", attack, *leak(own)))
        several = len({t.case.cell.labels.get("seed") for t in here}) > 1
        for (seed, client, index), own in sorted(groups_of(here, lambda t: t.place).items(), key=lambda kv: str(kv[0])):
            name = client + (f", seed {seed}" if several else "") + (f", round {index + 1}" if index else "")
            rows += [(scenario, network, name, turn.attack, *leak([turn])) for turn in own]
    note = noted(rows, f"{IMAGES}; {NOT_SAFE}")
    columns = ("scenario", "network", "image of", "attack", *LEAK)
    return Table("One image, one step: networks and attacks", columns, tuple(rows), note)


def differences(results: Results) -> Table:
    """How much more ours gets than each other attack from the same updates."""
    found = turns(results, lambda s: s.scenario in ("one-image", "smooth") and s.plain)
    rows = []
    for (scenario, network), here in groups_of(found, lambda t: (t.case.scenario, t.case.network)).items():
        ours = of(here, OURS)
        for attack in [a for a in groups_of(here, lambda t: t.attack) if a != OURS]:
            for measure, shown in (("ssim", "SSIM"), ("rdlv", "RDLV")):
                gap = paired(ours, of(here, attack), measure)
                if gap is not None:
                    d = gap.difference
                    rows.append((
                        scenario, network, attack, shown, d.value, d.interval, d.images, gap.better, gap.p,
                    ))  # fmt: skip
    columns = (
        "scenario", "network", f"{OURS} minus", "measure", "difference", "95 % interval", "n",
        "sets of images where ours is more", "p (sign test)",
    )  # fmt: skip
    note = (
        "paired over the images that both met, 0 if both get as much; intervals: Student's, over images; p: one-sided, "
        "1/2^n at best"
    )
    return Table(f"{OURS} against the others, image by image", columns, tuple(rows), noted(rows, note))


def mitigations(results: Results) -> Table:
    """The mitigations of the paper's discussion against none: what attacks still get, and what it costs."""
    rows: list[tuple[Any, ...]] = []
    every = cases(results)
    met = turns(results, lambda s: s.plain or s.kind == "other")
    for scenario in dict.fromkeys(s.scenario for s in every if s.kind == "other"):
        here = [s for s in every if s.scenario == scenario and (s.plain or s.kind == "other")]
        for defence in sorted({_named(s) for s in here}, key=lambda name: name != "none"):
            cost = accuracy([s for s in here if _named(s) == defence])
            mine = [t for t in met if t.case.scenario == scenario and _named(t.case) == defence]
            for attack, by_attack in groups_of(mine, lambda t: t.attack).items():
                for who, chosen in _whose(by_attack).items():
                    rows.append((scenario, defence, attack, who, *leak(chosen), value(cost), interval(cost)))
    alone = turns(results, lambda s: s.scenario == "one-image" and s.plain)
    cost = accuracy([s for s in every if s.scenario == "one-image" and s.plain])
    if of(alone, "no-statistics"):
        for attack, words in ((OURS, "none"), ("no-statistics", "statistics not used")):
            if own_turns := of(alone, attack):
                rows.append(("one-image", words, attack, "all attacked", *leak(own_turns), value(cost), interval(cost)))
    columns = ("scenario", "mitigation", "attack", "images of", *LEAK, "accuracy", "accuracy 95 %")
    base = "the rows without a mitigation are what the others are to be held against"
    note = f"{base}; {IMAGES}; accuracy: of the last round, with personal layers a mean over clients; {NOT_SAFE}"
    return Table("Mitigations against none", columns, tuple(rows), noted(rows, note))


TABLES: Tables = {
    "gradient-inversion/1": table_1,
    "gradient-inversion/2": table_2,
    "gradient-inversion/3": figure_3,
    "gradient-inversion/networks": networks,
    "gradient-inversion/differences": differences,
    "gradient-inversion/mitigations": mitigations,
    "gradient-inversion/headline": headline,
}


def _named(case: Case) -> str:
    """The defence, where there is one: noise of size 0 is none."""
    return "none" if case.plain else case.defence


def _whose(found: Sequence[Turn]) -> dict[str, list[Turn]]:
    """All attacked clients together, and the one at high risk alone."""
    alone = [t for t in found if t.client == HIGH_RISK]
    return {"all attacked": list(found), **({HIGH_RISK: alone} if 0 < len(alone) < len(found) else {})}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
