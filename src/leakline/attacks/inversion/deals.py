"""Ways to deal labels out to the steps of an epoch, likeliest after a shuffle first.

A way is the counts by class in each step. After a shuffle its probability is that of the multivariate hypergeometric
law, a product of multinomial coefficients: proportional to 1 / prod n!, the product over steps and classes. Few images
have few ways, and all are looked at. Thirty images of ten classes in steps of four have more than can be: then the most
even way is sought, and from it on the likeliest of all ways that exchanging two labels leads to.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, cycle, islice, product

MOST_WAYS = 20_000
"""So many ways are looked at one by one."""

Way = tuple[tuple[int, ...], ...]


def deals(counts: Sequence[int], sizes: Sequence[int], most: int) -> list[Way]:
    """The ``most`` likeliest ways to deal labels with these counts out to steps of these sizes, or all there are."""
    every = list(islice(_ways(tuple(counts), tuple(sizes)), MOST_WAYS + 1))
    if len(every) <= MOST_WAYS:
        return sorted(every, key=lambda way: (_rarity(way), way))[:most]
    return _from_the_most_even(_even(counts, sizes), most)


def _rarity(way: Way) -> float:
    """The log of prod n!."""
    return sum(math.lgamma(n + 1) for step in way for n in step)


def _ways(left: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Way]:
    if len(sizes) == 1:
        yield (left,)
        return
    for taken in _parts(left, sizes[0]):
        rest = tuple(a - b for a, b in zip(left, taken, strict=True))
        for others in _ways(rest, sizes[1:]):
            yield (taken, *others)


def _parts(most: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    """All tuples of ``size`` in sum that lie below ``most`` entry by entry."""
    if len(most) == 1:
        if size <= most[0]:
            yield (size,)
        return
    rest = sum(most[1:])
    for first in range(max(size - rest, 0), min(most[0], size) + 1):
        for others in _parts(most[1:], size - first):
            yield (first, *others)


def _even(counts: Sequence[int], sizes: Sequence[int]) -> Way:
    """Labels dealt round, class after class, then exchanged as long as that makes the way likelier."""
    dealt = [[0] * len(counts) for _ in sizes]
    labels = chain.from_iterable([c] * n for c, n in enumerate(counts))
    turns = (step for step in cycle(range(len(sizes))) if sum(dealt[step]) < sizes[step])
    for label, step in zip(labels, turns, strict=False):
        dealt[step][label] += 1
    way = tuple(tuple(step) for step in dealt)
    while _rarity(better := min(_exchanged(way), key=_rarity, default=way)) < _rarity(way):
        way = better
    return way


def _from_the_most_even(way: Way, most: int) -> list[Way]:
    """Best first: of all ways next to those found, the likeliest is found next."""
    waiting, seen, found = [(_rarity(way), way)], {way}, list[Way]()
    while waiting and len(found) < most:
        _, way = heapq.heappop(waiting)
        found.append(way)
        for near in _exchanged(way):
            if near not in seen:
                seen.add(near)
                heapq.heappush(waiting, (_rarity(near), near))
    return found


def _exchanged(way: Way) -> Iterator[Way]:
    """All ways with one label of one step exchanged for one of another class in another step."""
    for (i, one), (j, other) in combinations(enumerate(way), 2):
        for a, b in product(range(len(one)), repeat=2):
            if a != b and one[a] and other[b]:
                near = [list(step) for step in way]
                near[i][a], near[i][b] = one[a] - 1, one[b] + 1
                near[j][a], near[j][b] = other[a] + 1, other[b] - 1
                yield tuple(tuple(step) for step in near)
