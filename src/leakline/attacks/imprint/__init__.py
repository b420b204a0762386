"""Imprint: a server that cheats puts a layer of its own before the clients' network, and reads their images off it."""

from leakline.attacks.imprint.attack import Imprint

__all__ = ["Imprint"]
