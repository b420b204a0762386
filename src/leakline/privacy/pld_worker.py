"""Privacy-loss distributions in a process of their own, so that a limit on memory can be kept.

Run by path (``python -P pld_worker.py REQUEST``) with one JSON request: it imports only dp-accounting and the
standard library, never the caller's main module. Answers go to standard output, one JSON line each, the last
one best; every line is a valid upper bound, so a caller may use what is there when memory runs out. How much work is
done depends on the request alone (`cells`), never on the clock: the same question has the same answer on any machine.
A request is {"events": [[mu, times, rate, copies], ...], "replace": bool, "delta", "interval", "cells"}.
With "epsilon" and "start" as well, the answer is the smallest factor to divide all mu by to reach epsilon.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

MEMORY = 4 << 30  # bytes; a laptop must not swap because someone asked about nearly no noise
FINEST, CELLS = 1e-4, 20_000  # cells are FINEST wide, or epsilon / CELLS where that is wider
MOST_CELLS = 4_000_000  # of all single releases together: some twenty seconds of one core


def cells(events: list[list[float]], interval: float) -> float:
    """About how many cells the single releases take, which is most of the work.

    The loss of a Gaussian release is normal around mu^2 / 2 with standard deviation mu, kept to ten of them on either
    side; a group of k is a mixture of k + 1 with shifts up to k mu, which dp-accounting sums cell by cell.
    """
    return sum((1 + copies**2) / 2 * (20 * copies * mu + (copies * mu) ** 2) / interval for mu, _, _, copies in events)


def distribution(events: list[list[float]], replace: bool, interval: float, factor: float = 1.0) -> Any:
    """Compose the privacy-loss distributions of Poisson-sampled Gaussian releases (pessimistic estimate)."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    total = pld.identity(value_discretization_interval=interval)
    for mu, times, rate, copies in events:
        if copies > 1:
            k = int(copies)
            chances = [math.comb(k, j) * rate**j * (1 - rate) ** (k - j) for j in range(k + 1)]
            one = pld.from_mixture_gaussian_mechanism(
                factor / mu, list(range(k + 1)), chances, value_discretization_interval=interval
            )
        else:
            one = pld.from_gaussian_mechanism(
                (2 if replace else 1) * factor / mu,  # REPLACE_ONE doubles the sensitivity by itself
                value_discretization_interval=interval,
                sampling_prob=rate,
                neighboring_relation=(
                    NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE
                ),
            )
        total = total.compose(one.self_compose(int(times)))
    return total


def tell(**answer: float | bool) -> None:
    """Print one answer at once, so that it survives a kill."""
    print(json.dumps(answer), flush=True)


def measure(request: dict[str, Any]) -> None:
    """Print epsilon at delta, with finer and finer cells until they are fine enough for the epsilon found."""
    interval = request["interval"]
    while True:
        loss = distribution(request["events"], request["replace"], interval)
        epsilon = loss.get_epsilon_for_delta(request["delta"])
        wanted = max(FINEST, epsilon / CELLS)
        final = not interval > 1.01 * wanted
        tell(epsilon=epsilon, total_variation=loss.get_delta_for_epsilon(0.0), final=final)
        if final:
            return
        interval = max(wanted, interval / 10)
        if cells(request["events"], interval) > request["cells"]:
            return


def shrink(request: dict[str, Any]) -> None:
    """Print the factor by which all mu must be divided to reach epsilon; err on the private side.

    "start" is a factor known to be private, from a looser accountant.
    """
    from scipy.optimize import brentq

    seen: dict[float, float] = {}

    def excess(x: float) -> float:
        if x not in seen:
            loss = distribution(request["events"], request["replace"], request["interval"], math.exp(x))
            seen[x] = math.log(max(loss.get_delta_for_epsilon(request["epsilon"]), 1e-300) / request["delta"])
        return seen[x]

    high = math.log(request["start"])
    low = high - 0.2
    while excess(low) <= 0:
        low, high = low - 0.4, low
    if excess(high) <= 0:
        tell(shrink=math.exp(brentq(excess, low, high, xtol=2e-5) + 4e-5), final=True)


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.argv[1])
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each thread would reserve address space under the limit below
    if sys.platform != "win32":
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY if hard < 0 else min(MEMORY, hard), hard))
    if "epsilon" in request:
        shrink(request)
    else:
        measure(request)


if __name__ == "__main__":
    main()
