"""Privacy-loss distributions in a process of their own, so that a time budget can be kept.

Run by path (``python -P pld_worker.py REQUEST``) with one JSON request: it imports only dp-accounting and the
standard library, never the caller's main module. Answers go to standard output, one JSON line each, the last
one best; every line is a valid upper bound, so a caller who runs out of time may use what is there.
A request is {"events": [[mu, times, rate, copies], ...], "replace": bool, "delta", "interval", "seconds"}.
With "epsilon" and "start" as well, the answer is the smallest factor to divide all mu by to reach epsilon.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from typing import Any

MEMORY = 4 << 30  # bytes; a laptop must not swap because someone asked about nearly no noise
FINEST, CELLS = 1e-4, 20_000  # cells are FINEST wide, or epsilon / CELLS where that is wider


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
    """Answer one request, or stop when the time is up even if the parent is gone."""
    request = json.loads(sys.argv[1])
    alarm = threading.Timer(request["seconds"], os._exit, (3,))
    alarm.daemon = True
    alarm.start()
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
