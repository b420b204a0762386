"""From official distributions to the files that load by name: ``leakline data prepare NAME --source PATH``.

Every function reads a data set as its authors publish it (folders, archives, tables) and writes one .npz into
the destination folder, under a temporary name first, so that a file is there whole or not at all. Nothing is
unpickled.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from leakline.data.prepare.benchmarks import cifar10, fashion_mnist, mnist, svhn
from leakline.data.prepare.folders import alzheimer_mri, chest_xray, fundus, head_ct
from leakline.data.prepare.masks import lgg_flair, prostate
from leakline.data.prepare.motion import mobiact, mobifall, motionsense
from leakline.data.prepare.rsna import rsna_ich

PREPARE: dict[str, Callable[[Path, Path], Path]] = {
    "alzheimer-mri": alzheimer_mri,
    "chest-xray": chest_xray,
    "fundus": fundus,
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    "svhn": svhn,
    "motionsense": motionsense,
    "mobiact": mobiact,
    "mobifall": mobifall,
    "head-ct": head_ct,
    "rsna-ich": rsna_ich,
    "lgg-flair": lgg_flair,
    "prostate": prostate,
}

__all__ = ["PREPARE"]
