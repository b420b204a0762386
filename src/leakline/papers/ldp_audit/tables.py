"""Paper 002's figures and tables from a run of `ldp-audit`: the paper's rules, the optimal ones, and bounds that hold.

"eq. (3)" columns are what the paper plots: the mean of ten point estimates, biased upwards, and of the seeds. ">="
columns are 95 % Clopper-Pearson bounds of a seed's pooled counts, of several seeds the least. Figures come as the table
of their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from leakline.attacks.audit.crafters import SIX
from leakline.attacks.audit.ldp_game import RULES
from leakline.leakage.closed_forms import flip_epsilon, shuffled_flip_epsilon
from leakline.papers.ldp_audit import printed
from leakline.readings import Reading
from leakline.report.papers import Tables
from leakline.results import Results
from leakline.results.table import Table

BOUNDS = (
    "eq. (3): mean of the measurements' point estimates, biased upwards, and of the seeds; >=: 95 % bound of a seed's "
    "pooled counts, the least of the seeds"
)

VARIED = ("norm", "step", "clients", "crowd")
"""What single figures vary; readings of the others have none of it."""


@dataclass(frozen=True)
class Game:
    """The finished cells of one data set and one epsilon: what each seed measured of each adversary, box and rule."""

    data: str
    epsilon: float
    seeds: Sequence[Sequence[Reading]]

    def got(self, adversary: str, box: str, rule: str, **varied: float) -> tuple[float | None, float | None]:
        """The mean of eq. (3), and the least of the seeds' bounds; nothing where it was not played."""
        found = self._lines(adversary, box, rule, varied)
        if not found:
            return None, None
        return mean(float(r.value) for r in found), min((r.low for r in found if r.low is not None), default=None)

    def size(self, adversary: str, box: str, rule: str, **varied: float) -> tuple[int | None, int]:
        """How many trials that took in each seed, and in how many seeds it was played."""
        found = self._lines(adversary, box, rule, varied)
        return min((r.n for r in found if r.n is not None), default=None), len(found)

    def _lines(self, adversary: str, box: str, rule: str, varied: Mapping[str, float]) -> list[Reading]:
        asked = {"adversary": adversary, "box": box, "rule": rule, **{key: varied.get(key) for key in VARIED}}
        of_seed = (next((r for r in s if asked == {key: r.about.get(key) for key in asked}), None) for s in self.seeds)
        return [r for r in of_seed if r is not None]

    def varied(self, what: str) -> list[float]:
        """The values of one of `VARIED`, in order."""
        return sorted({float(r.about[what]) for played in self.seeds for r in played if what in r.about})


def games(results: Results, data: str = "") -> list[Game]:
    """The finished cells with one LDP mechanism, of one data set or of all, by epsilon; seeds stand together."""
    found: dict[tuple[str, float], list[Sequence[Reading]]] = {}
    for cell in results.finished.cells:
        name = cell.label("scenario")
        played = [r for r in cell.attacks if r.measure == "estimated-epsilon"]
        given = cell.defences[0].get("epsilon") if len(cell.defences) == 1 else None
        if given is not None and played and data in ("", name):
            found.setdefault((name, float(given)), []).append(played)
    every = [Game(name, epsilon, seeds) for (name, epsilon), seeds in found.items()]
    return sorted(every, key=lambda game: game.epsilon) if data else every


def _panels(data: str, title: str) -> Callable[[Results], Table]:
    """Figures 2, 5, 6 and 7: six adversaries, both boxes, every epsilon."""

    def table(results: Results) -> Table:
        rows = []
        for adversary in SIX:
            for game in games(results, data):
                paper = printed.WHITE.get((adversary, game.epsilon)) if data == "mnist" else None
                rows.append((
                    adversary, game.epsilon, paper, *game.got(adversary, "white", "cosine"),
                    *game.got(adversary, "white", "optimal"), *game.got(adversary, "black", RULES[adversary]),
                ))  # fmt: skip
        columns = (
            "adversary", "epsilon", "paper, white", "white eq. (3)", "white >=", "optimal eq. (3)", "optimal >=",
            "black eq. (3)", "black >=",
        )  # fmt: skip
        note = f"{BOUNDS}; white: cosine rule (5); optimal: likelihood ratio; black: rules (4), (6), (7)"
        return Table(title, columns, tuple(rows), note)

    table.__doc__ = f"Paper 002, {title}."
    return table


def _summary(title: str, data: str = "") -> Callable[[Results], Table]:
    """One row per adversary, three columns per data set, at the largest epsilon."""

    def table(results: Results) -> Table:
        top = max((game.epsilon for game in games(results)), default=math.nan)
        chosen = [game for game in games(results) if game.epsilon == top and data in ("", game.data)]
        columns = [f"{game.data} {box}" for game in chosen for box in ("white", "black", "optimal >=")]
        rows = []
        for adversary in SIX:
            row: list[Any] = [adversary]
            for game in chosen:
                white, black = game.got(adversary, "white", "cosine"), game.got(adversary, "black", RULES[adversary])
                row += [white[0], black[0], game.got(adversary, "white", "optimal")[1]]
            rows.append(tuple(row))
        return Table(title, ("adversary", *columns), tuple(rows), f"epsilon = {top:g}; {BOUNDS}")

    table.__doc__ = f"Paper 002, {title}, at the largest epsilon."
    return table


def _varied(
    results: Results, what: str, parts: Sequence[str], cells: Callable[[Game, float], Sequence[Any]]
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Columns for every epsilon of MNIST, and a row for every value that was played."""
    found = games(results, "mnist")
    columns = [f"eps {game.epsilon:g} {part}" for game in found for part in parts]
    values = sorted({value for game in found for value in game.varied(what)})
    return columns, [(value, *(cell for game in found for cell in cells(game, value))) for value in values]


def figure_3(results: Results) -> Table:
    """Paper 002, Figure 3: a dummy gradient's norm, measured and in closed form."""

    def cells(game: Game, ratio: float) -> Sequence[Any]:
        measured = game.got("dummy gradient", "white", "cosine", norm=ratio)
        return (*measured, flip_epsilon(game.epsilon, ratio))

    columns, rows = _varied(results, "norm", ("eq. (3)", ">=", "exact"), cells)
    note = f"{BOUNDS}; exact: 2 artanh(r tanh(eps / 2))"
    return Table("Figure 3: effect of the gradient's norm", ("norm / L", *columns), tuple(rows), note)


def table_1(results: Results) -> Table:
    """Paper 002, Table 1: who may do what, and which rule decides."""
    rows = tuple(
        (
            name, printed.CRAFTS[name], "parameters" if name == "collusion" else "nothing",
            printed.EQUATIONS[RULES[name]], "(5)",
        )
        for name in SIX
    )  # fmt: skip
    columns = ("adversary", "crafter alters", "server alters", "black box", "white box")
    return Table("Table 1: adversaries", columns, rows, "weakest first; beside (5) the likelihood ratio is played")


def table_2(results: Results) -> Table:
    """Paper 002, Table 2: the network, layer by layer, as it is built."""
    rows = (*printed.NETWORK, ("in all", "", sum(size for _, _, size in printed.NETWORK)))
    return Table("Table 2: network", ("layer", "what", "parameters"), rows, "for 28x28 grey images")


def table_3(results: Results) -> Table:
    """Paper 002, Table 3: the benign black box as the number of clients grows (MNIST)."""

    def cells(game: Game, clients: float) -> Sequence[Any]:
        change, inverted = (game.got("benign", "black", rule, clients=clients) for rule in ("loss change", "inverted"))
        return (*change, inverted[1])

    columns, rows = _varied(results, "clients", ("eq. (3)", ">=", "inverted >="), cells)
    body = tuple((int(n), printed.CLIENTS.get(int(n)), *rest) for n, *rest in rows)
    note = (
        f"{BOUNDS}; rule (6); inverted: the box divides the public step out of the model's change and takes the "
        "likelihood ratio of the mean, bound at all thresholds at once"
    )
    return Table("Table 3: number of clients, benign, MNIST", ("clients", "paper", *columns), body, note)


def steps(results: Results) -> Table:
    """Gradient flip, black box: the server's step decides what rule (4) finds (not in the paper)."""

    def cells(game: Game, times: float) -> Sequence[Any]:
        return game.got("gradient flip", "black", "loss", step=times)

    columns, rows = _varied(results, "step", ("eq. (3)", ">="), cells)
    title = "Black box against the length of the server's step, MNIST"
    return Table(title, ("step, times the study's", *columns), tuple(rows), BOUNDS)


def shuffle(results: Results) -> Table:
    """Paper 002, Sec. 4.3: what reports without names promise, and what is found in them (not run in the paper)."""
    from leakline.privacy.shuffle import shuffled_epsilon

    found = [game for game in games(results, "mnist") if game.varied("crowd")]
    rows = []
    for game in found:
        for n in game.varied("crowd"):
            flip, benign = (game.got(who, "shuffled", "optimal", crowd=n)[1] for who in ("gradient flip", "benign"))
            every = (r for played in game.seeds for r in played)
            delta = next(float(r.about["delta"]) for r in every if r.about.get("crowd") == n)
            accounted = shuffled_epsilon(game.epsilon, int(n), delta)
            exact = shuffled_flip_epsilon(game.epsilon, int(n), delta)
            rows.append((game.epsilon, int(n), delta, accounted, exact, flip, benign))
    columns = ("epsilon of a report", "clients", "delta", "accounted", "flip, exact", "flip >=", "benign >=")
    note = (
        "one round behind a trusted shuffler; accounted: clones of Feldman et al. 2021, summed; exact: of the game "
        "that is played, others hold the first gradient; >=: 95 % bound of the likelihood ratio at all ranks, "
        "the least of the seeds"
    )
    return Table("Section 4.3: reports without names, MNIST", columns, tuple(rows), note)


TABLES: Tables = {
    "ldp-audit/fig1b": _summary("Figure 1b: measured epsilon, MNIST", "mnist"),
    "ldp-audit/fig2": _panels("mnist", "Figure 2: measured epsilon, MNIST"),
    "ldp-audit/fig3": figure_3,
    "ldp-audit/fig4": _summary("Figure 4: four data sets"),
    "ldp-audit/fig5": _panels("cifar10", "Figure 5: measured epsilon, CIFAR-10"),
    "ldp-audit/fig6": _panels("fashion-mnist", "Figure 6: measured epsilon, Fashion-MNIST"),
    "ldp-audit/fig7": _panels("svhn", "Figure 7: measured epsilon, SVHN"),
    "ldp-audit/table1": table_1,
    "ldp-audit/table2": table_2,
    "ldp-audit/table3": table_3,
    "ldp-audit/shuffle": shuffle,
    "ldp-audit/steps": steps,
}
