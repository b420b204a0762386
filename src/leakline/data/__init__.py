"""Data: what federations learn from, who holds it, and how official distributions become files that load.

``DATASETS`` and ``PARTITIONERS`` are the menus a study chooses from; ``partition`` makes a task of one of
each.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from leakline.data.arrays import MedMNIST, Npz
from leakline.data.base import Client, Data, Dataset, Kind, Task, Trait
from leakline.data.csv_signals import CsvSignals
from leakline.data.dicom_folder import DicomFolder
from leakline.data.digits import Digits
from leakline.data.elsewhere import AtNodes, Elsewhere
from leakline.data.features import FEATURES, Scattering
from leakline.data.folders import ImageFolder
from leakline.data.motion import Motion
from leakline.data.nifti_folder import NiftiFolder
from leakline.data.partition import Row, partition, table
from leakline.data.partitioners import ByColumn, Counts, Dirichlet, Even, Partitioner, Sizes
from leakline.data.phantoms import Phantoms
from leakline.data.plant import PLANTS, Strength
from leakline.data.prepared_images import (
    AlzheimerMri,
    ChestXray,
    Cifar10,
    FashionMnist,
    Fundus,
    HeadCt,
    Mnist,
    RsnaIch,
    Svhn,
)
from leakline.data.prepared_masks import LggFlair, Prostate
from leakline.data.prepared_motion import MobiAct, MobiFall, MotionSense
from leakline.data.table_file import TableFile, from_indexable
from leakline.data.tables import CLIENT_INFERENCE, COUNT_TABLES, HOMOGENEOUS, NON_IID
from leakline.names import client_names, is_safe


class Source(Protocol):
    """A data set that can be loaded; its fields are its configuration.

    ``embedded``: it needs no file. ``needs``: the file or setting it needs otherwise.
    """

    embedded: ClassVar[bool]
    needs: ClassVar[str]

    def available(self) -> bool:
        """Whether it can be loaded here and now."""
        ...

    def load(self) -> Dataset:
        """The data set."""
        ...


DATASETS: dict[str, type[Source]] = {
    "digits": Digits,
    "phantoms": Phantoms,
    "motion": Motion,
    "image-folder": ImageFolder,
    "dicom-folder": DicomFolder,
    "nifti-folder": NiftiFolder,
    "npz": Npz,
    "csv-signals": CsvSignals,
    "table": TableFile,
    "at-nodes": AtNodes,
    "medmnist": MedMNIST,
    "alzheimer-mri": AlzheimerMri,
    "chest-xray": ChestXray,
    "fundus": Fundus,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "svhn": Svhn,
    "motionsense": MotionSense,
    "mobiact": MobiAct,
    "mobifall": MobiFall,
    "head-ct": HeadCt,
    "rsna-ich": RsnaIch,
    "lgg-flair": LggFlair,
    "prostate": Prostate,
}

PARTITIONERS: dict[str, type[Partitioner]] = {
    "even": Even,
    "sizes": Sizes,
    "counts": Counts,
    "dirichlet": Dirichlet,
    "by-column": ByColumn,
}

__all__ = [
    "CLIENT_INFERENCE",
    "COUNT_TABLES",
    "DATASETS",
    "FEATURES",
    "HOMOGENEOUS",
    "NON_IID",
    "PARTITIONERS",
    "PLANTS",
    "AlzheimerMri",
    "AtNodes",
    "ByColumn",
    "ChestXray",
    "Cifar10",
    "Client",
    "Counts",
    "CsvSignals",
    "Data",
    "Dataset",
    "DicomFolder",
    "Digits",
    "Dirichlet",
    "Elsewhere",
    "Even",
    "FashionMnist",
    "Fundus",
    "HeadCt",
    "ImageFolder",
    "Kind",
    "LggFlair",
    "MedMNIST",
    "Mnist",
    "MobiAct",
    "MobiFall",
    "Motion",
    "MotionSense",
    "NiftiFolder",
    "Npz",
    "Partitioner",
    "Phantoms",
    "Prostate",
    "Row",
    "RsnaIch",
    "Scattering",
    "Sizes",
    "Source",
    "Strength",
    "Svhn",
    "TableFile",
    "Task",
    "Trait",
    "client_names",
    "from_indexable",
    "is_safe",
    "partition",
    "table",
]
