"""The attacks, and the menu that a study file names them by."""

from collections.abc import Callable
from typing import Any

from leakline.attacks.base import Attack, Challenge
from leakline.attacks.membership import LossThreshold

__all__ = ["MENU", "Attack", "Challenge", "LossThreshold"]

MENU: dict[str, Callable[..., Any]] = {
    "loss-threshold": LossThreshold,
}
