"""What became of paper 002's numbers and of its conclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leakline.attacks.audit.ldp_game import RULES
from leakline.papers.ldp_audit import printed
from leakline.papers.ldp_audit.tables import Game, games
from leakline.report.verdicts import NOT_REPRODUCED, REPRODUCED, UNDECIDED, Row, Verdicts, bound_row, impossible
from leakline.results import Results

WITHIN = 0.25
"""How near an estimate of epsilon must come to the printed one; the paper gives no spread."""
NEAR_ZERO = 0.04
"""The same for Table 3: twice the standard error of eq. (3) near 0 from 5,000 trials in each world, sqrt(2 / 5,000)."""
EPSILON = 4.0
DATA = ("mnist", "fashion-mnist", "cifar10", "svhn")
LEAST = "95 % lower bound, the least of three adversaries and of the seeds"
STRONG = ("gradient flip", "collusion", "dummy gradient")


def verdicts(stores: Mapping[str, Results]) -> Verdicts:
    """The numbers of the text, Table 3, and the three conclusions."""
    results = stores["ldp-audit"]
    found = {data: next((g for g in games(results, data) if g.epsilon == EPSILON), None) for data in DATA}
    mnist = found["mnist"]
    white = [
        _number(f"{who}, white box, epsilon {epsilon:g}", paper, mnist, who, "white", "cosine")
        for (who, epsilon), paper in printed.WHITE.items()
    ]
    clients = [
        _number(f"{n} clients, rule (6)", paper, mnist, "benign", "black", "loss change", clients=n)
        for n, paper in printed.CLIENTS.items()
    ]
    return {
        "Figure 2 and text: measured epsilon, MNIST": white,
        "Table 3: the black box as clients grow, MNIST": clients,
        "Table 1: adversaries and rules": [
            impossible("rule (7) as printed", "guesses g1 where signs are positive", "descent moves the other way"),
        ],
        "What the paper concludes": [
            *(_reaches(data, game) for data, game in found.items()),
            *(_limited(data, game) for data, game in found.items()),
            _black(mnist),
        ],
    }


def _number(what: str, paper: float, game: Game | None, who: str, box: str, rule: str, **varied: float) -> Row:
    within = NEAR_ZERO if varied else WITHIN
    if game is None:
        return bound_row(what, paper, None, None, None, within)
    value, low = game.got(who, box, rule, **varied)
    n, seeds = game.size(who, box, rule, **varied)
    return bound_row(what, paper, value, low, n, within, seeds)


def _reaches(data: str, game: Game | None) -> Row:
    what = f"who alters gradients reaches epsilon, white box, {data}"
    lows = _lows(game, STRONG, "white", "cosine")
    if game is None or not lows:
        return Row(what, "epsilon is reached")
    verdict = REPRODUCED if min(lows) > 0.9 * EPSILON else NOT_REPRODUCED
    return Row(
        what, "epsilon is reached", f"{min(lows):.3f} of {EPSILON:g}", LEAST, *game.size(STRONG[0], "white", "cosine"),
        verdict, "reproduced above nine tenths",
    )  # fmt: skip


def _limited(data: str, game: Game | None) -> Row:
    what = f"who cannot alter gradients is limited, white box, {data}"
    lows = _lows(game, [who for who in RULES if who not in STRONG], "white", "optimal")
    if game is None or not lows:
        return Row(what, "far below epsilon")
    verdict = NOT_REPRODUCED if min(lows) > 0.75 * EPSILON else UNDECIDED
    return Row(
        what, "far below epsilon", f"{min(lows):.3f} of {EPSILON:g}", LEAST, *game.size("benign", "white", "optimal"),
        verdict, "likelihood ratio in place of the cosine",
    )  # fmt: skip


def _black(game: Game | None) -> Row:
    what = "who sees only the updated model of several clients is limited, MNIST"
    if game is None:
        return Row(what, "0.06 to 0.12")
    lows = {int(n): game.got("benign", "black", "inverted", clients=n)[1] for n in game.varied("clients")}
    ours = ", ".join(f"{low:.2f} ({n})" for n, low in lows.items() if low is not None)
    above = [low for n, low in lows.items() if low is not None and n > 1]
    verdict = NOT_REPRODUCED if above and max(above) > max(printed.CLIENTS.values()) else UNDECIDED
    note = "clients in brackets; the likelihood ratio of the mean, public step divided out"
    return Row(
        what, "0.06 to 0.12", ours, "95 % lower bounds, the least of the seeds",
        *game.size("benign", "black", "inverted", clients=2), verdict, note,
    )  # fmt: skip


def _lows(game: Game | None, who: Sequence[str], box: str, rule: str) -> list[float]:
    found = [] if game is None else [game.got(name, box, rule)[1] for name in who]
    return [low for low in found if low is not None]
