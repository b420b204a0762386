"""Which device a study runs on."""

from __future__ import annotations

from leakline.errors import StudyError


def resolve_device(wanted: str) -> str:
    """The device of a study: "auto" is CUDA, else Apple's MPS, else the CPU; anything else must be there."""
    import torch

    have = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if have[name])
    if not have.get(wanted.split(":")[0], False):
        here = ", ".join(name for name, there in have.items() if there)
        raise StudyError(f"there is no device {wanted!r} here", "device", f'set device = "auto", or one of: {here}')
    return wanted
