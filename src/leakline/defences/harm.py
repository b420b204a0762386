"""Whether the promise of one defence stands beside the others of its stack."""

from __future__ import annotations

from collections.abc import Sequence

from leakline.defences.base import Defence
from leakline.privacy import NoClaim, Seat
from leakline.weights import Layout


def harm(stack: Sequence[Defence], place: int, observer: Seat, wire: Layout) -> NoClaim | None:
    """Why the promise that the defence at ``place`` makes about ``observer`` does not stand beside the others, or None.

    The server comes after a local promise, so nothing it does can weaken one. A promise about published models is
    made by a clip and a noise: no defence may come between the two, treat clients together before them, or carry
    past the noise what it saw before.
    """
    for other_place, other in enumerate(stack):
        if other_place != place:
            rule = _harm_at_client if observer is Seat.SERVER else _harm_at_server
            if problem := rule(stack[place], other, other_place > place, wire):
                return problem
    return None


def _harm_at_client(defence: Defence, other: Defence, behind: bool, wire: Layout) -> NoClaim | None:
    mine, its = type(defence).__name__, type(other).__name__
    if "release" not in other.hooks:
        return None
    if behind and not {"split", "batches", "gradient"}.isdisjoint(other.hooks):
        return NoClaim(f"{its} sees a client's examples, and its updates after their noise", f"put {mine} last")
    if not behind and "gradient" in defence.hooks and wire.buffers:
        return NoClaim(f"{its} mixes what has no noise ({wire.buffers[0]}) into the update", f"put {mine} first")
    return None


def _harm_at_server(defence: Defence, other: Defence, behind: bool, wire: Layout) -> NoClaim | None:
    mine, its = type(defence).__name__, type(other).__name__
    publishes = "publish" in other.hooks
    if "split" in other.hooks:
        return NoClaim(
            f"{its} makes a client send several updates a round, each clipped by itself",
            f"leave {mine} out: {its} clips and adds noise",
        )
    if publishes and other.at == "aggregate" and defence.at == "model":
        return NoClaim(
            f"{its} sees the combined change before the noise and may carry it into later rounds",
            'set at = "aggregate", and put it first in the stack',
        )
    if behind and "admit" in other.hooks:
        return NoClaim(f"{its} changes the updates after they were clipped", f"put {mine} last in the stack")
    if behind and publishes and other.at == defence.at:
        return NoClaim(f"{its} sees the combined change before the noise", f"put {mine} last in the stack")
    if other.reach == "all":
        return NoClaim(
            f"{its} may treat clients' updates together or remember them: what one client changes in it is not "
            f"counted in what {mine} promises",
            "leave one of the two out (a defence of your own: say that its reach is each update by itself)",
        )
    if other.denominator not in (None, defence.denominator):
        return NoClaim(f"{its} and {mine} divide by different numbers of clients", "give both the same denominator")
    return None
