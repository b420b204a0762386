"""The defences: one object per promise, and the menu that a study file names them by."""

from leakline.defences.adaptive_clip import AdaptiveClip
from leakline.defences.base import Defence, Stage, hooks_of
from leakline.defences.global_dp import GlobalDP

__all__ = ["MENU", "AdaptiveClip", "Defence", "GlobalDP", "Stage", "hooks_of"]

MENU: dict[str, type[Defence]] = {
    "global-dp": GlobalDP,
    "adaptive-clip": AdaptiveClip,
}
