"""Calls to a SuperLink that cannot serve one just now.

Flower asks again by itself where a connection breaks and where a proxy says so (502 to 504), but not where the
SuperLink answers with an error of its own. One such answer must not end a federation. All calls may be made again:
orders and answers are known by what they hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import httpx

from leakline.errors import ClientLost

T = TypeVar("T")


def steadily(ask: Callable[[], Iterable[T]], until: float, pause: float) -> list[T]:
    """What a call gives, made again after an error of the SuperLink's own (500) until the time is over.

    ``until``: by the monotonic clock; ``pause``: seconds between two calls.
    """
    while True:
        try:
            return list(ask())
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status != httpx.codes.INTERNAL_SERVER_ERROR or time.monotonic() + pause >= until:
                raise ClientLost(
                    f"the SuperLink answers {status} to {error.request.url.path}",
                    "nothing is published of this round; the model of the round before stands",
                    "its log says why; the same command goes on where it was",
                ) from error
        time.sleep(pause)
