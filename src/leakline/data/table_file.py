"""Tables of records: CSV and parquet files, Hugging Face sets saved on disk, and anything indexable from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from leakline.data.base import Dataset
from leakline.data.csv_signals import need, read_csv
from leakline.data.guard import CSV_BYTES, reading
from leakline.data.images import channels_first, decode_many
from leakline.data.people import PERSONAL, Record, gather, records_of
from leakline.data.split import limited
from leakline.errors import DataError
from leakline.names import natural, printable

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES, MOST_CLASSES = 100, 1000
NOT_YET = "is not supported yet"


@dataclass(frozen=True)
class TableFile:
    """Your own table: a CSV or parquet file with one row per record, or a Hugging Face set saved on disk.

    ``label`` is the column of classes; ``patient``, ``site``, ``sex``, ``age`` and ``split`` name the columns that say
    so ("" where there is none). Of the other columns, or of ``columns``, numbers are taken as they are and
    scaled over the training part to mean 0 and standard deviation 1 (``normalise = "none"``: not scaled), texts become
    one input for each value. A Hugging Face set's column of images is taken instead, at ``size`` x ``size``, grey or
    RGB. Regression and several labels for one record are not supported yet.
    """

    path: str
    label: str = "label"
    columns: tuple[str, ...] = ()
    patient: str = ""
    site: str = ""
    sex: str = ""
    age: str = ""
    split: str = ""
    normalise: Literal["column", "none"] = "column"
    size: int = 64
    grey: bool = True
    limit: int | None = None
    embedded: ClassVar[bool] = False
    needs: ClassVar[str] = "path: a .csv or .parquet file, or a folder that save_to_disk wrote"

    def available(self) -> bool:
        """Whether the file or folder is there."""
        return Path(self.path).exists()

    def load(self) -> Dataset:
        """Read the table."""
        path = Path(self.path)
        frame = read_table(path)
        named = {field: name for field in PERSONAL if (name := str(getattr(self, field)))}
        need(frame, [self.label, *named.values(), *self.columns], path)
        classes, y = _classes(frame[self.label].tolist(), path, self.label)
        told = {field: frame[name].fillna("").astype(str).tolist() for field, name in named.items()}
        records = records_of(told, len(frame))
        others = [c for c in frame.columns if c not in (self.label, *named.values())]
        chosen = [*(self.columns or others)]
        pictures = [c for c in chosen if isinstance(frame[c].iloc[0], dict) and "bytes" in frame[c].iloc[0]]
        held = np.array([r.tested for r in records], dtype=bool)
        x = self._images(frame, pictures[0], path) if pictures else self._numbers(frame, chosen, ~held, path)
        return limited(gather("table", x, torch.from_numpy(y), records, classes, printable(path)), self.limit)

    def _images(self, frame: pd.DataFrame, column: str, path: Path) -> torch.Tensor:
        sources = [bytes(cell["bytes"] or b"") for cell in frame[column]]
        images, _, failed = decode_many(sources, self.grey, self.size)
        if failed:
            raise DataError(
                f"{len(failed)} of {len(sources)} images of {column!r} cannot be read: {printable(failed[0][1], 80)}",
                printable(path), "save the set with its images inside (bytes, not paths)",
            )  # fmt: skip
        return torch.from_numpy(channels_first(np.stack(images)))

    def _numbers(self, frame: pd.DataFrame, columns: Sequence[str], train: np.ndarray, path: Path) -> torch.Tensor:
        made: list[np.ndarray] = []
        for name in columns:
            values = frame[name]
            if values.dtype.kind in "fiub":
                made.append(self._scaled(_finite(values.to_numpy(np.float64), name, path), train)[:, None])
            else:
                made.append(_one_hot(values.fillna("").astype(str).to_numpy(), name, path))
        if not made:
            raise DataError("the table has no column to learn from", printable(path), "name some in columns")
        return torch.from_numpy(np.ascontiguousarray(np.concatenate(made, 1).astype(np.float32)))

    def _scaled(self, values: np.ndarray, train: np.ndarray) -> np.ndarray:
        """Numbers over mean and deviation of the training part: the test part is not looked at."""
        if self.normalise == "none":
            return values
        part = values[train] if train.any() else values
        scaled: np.ndarray = (values - part.mean()) / (part.std() or 1.0)
        return scaled


def read_table(path: Path) -> pd.DataFrame:
    """A table from whichever of the known forms a path has."""
    import pandas as pd

    if path.is_dir():
        return _from_disk(path)
    if path.suffix.lower() != ".parquet":
        return read_csv(path)
    with reading(path, "check that it is a parquet file"):
        if path.stat().st_size > CSV_BYTES:
            raise DataError(f"the file is larger than {CSV_BYTES:,} bytes", printable(path), "split it")
        frame = pd.read_parquet(path)
        frame.columns = frame.columns.astype(str).str.strip()
    if not len(frame):
        raise DataError("the parquet file has no rows", printable(path), "check the file")
    return frame


def _from_disk(folder: Path) -> pd.DataFrame:
    """A set that Hugging Face's ``save_to_disk`` wrote: arrow files, and the names of classes beside them."""
    import json

    import pyarrow as pa

    parts = [name for name in ("train", "validation", "test") if (folder / name / "state.json").is_file()]
    if parts:
        raise DataError(
            f"the folder holds several parts: {', '.join(parts)}", printable(folder),
            f'give one of them: path = "{folder.name}/train"',
        )  # fmt: skip
    files = sorted(folder.glob("*.arrow"), key=lambda p: natural(p.name))
    if not files:
        raise DataError(
            "the folder holds no .arrow file", printable(folder), "give a folder that save_to_disk wrote, or a file"
        )
    with reading(folder, "save it again with save_to_disk"):
        tables = []
        for file in files:
            with pa.memory_map(str(file)) as source:
                tables.append(pa.ipc.open_stream(source).read_all())
        frame: pd.DataFrame = pa.concat_tables(tables).to_pandas()
        about = folder / "dataset_info.json"
        features = json.loads(about.read_text(encoding="utf-8")).get("features", {}) if about.is_file() else {}
        for name, feature in features.items() if isinstance(features, dict) else ():
            names = feature.get("names") if isinstance(feature, dict) else None
            if isinstance(names, list) and name in frame:  # a ClassLabel: numbers that count these names
                frame[name] = [str(names[int(v)]) for v in frame[name].to_numpy()]
    if not len(frame):
        raise DataError("the set has no rows", printable(folder), "check the folder")
    return frame


def from_indexable(
    examples: Any, name: str = "examples", classes: Sequence[str] = (), patients: Sequence[str] = ()
) -> Dataset:
    """A data set from anything that has a length and gives pairs (input, label): a torch Dataset, a list of pairs.

    Labels are whole numbers or texts. ``patients``: whose each example is, in the same order. `leakline.partition`
    shares it out.
    """
    pairs = [examples[i] for i in range(len(examples))]
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise DataError("every example must be a pair (input, label)", name, "let __getitem__ return two values")
    found, y = _classes([_plain(label) for _, label in pairs], Path(name), "label")
    inputs = [torch.as_tensor(np.asarray(x)) for x, _ in pairs]
    if len({tuple(x.shape) for x in inputs}) > 1:
        raise DataError("the inputs differ in shape", name, "bring them to one shape")
    x = torch.stack(inputs)
    x = x if x.dtype == torch.uint8 else x.float()
    if not bool(torch.isfinite(x.float()).all()):
        raise DataError("some inputs are not finite numbers", name, "remove those examples")
    if patients and len(patients) != len(pairs):
        raise DataError(f"{len(patients)} patients for {len(pairs)} examples", name, "name one for each")
    if classes and (len(classes) < len(found) or not all(str(c).isdigit() for c in found)):
        raise DataError(f"{len(classes)} names for {len(found)} classes", name, "name every class, counted from 0")
    names = tuple(classes) if classes else found
    records = [Record(patient=str(p)) for p in patients] if patients else [Record()] * len(pairs)
    labels = y if not classes else np.array([int(found[i]) for i in y], dtype=np.int64)
    return gather(name, x, torch.from_numpy(labels), records, names, name)


def _plain(label: Any) -> Any:
    if isinstance(label, torch.Tensor | np.ndarray):
        values = np.asarray(label)
        return values.item() if values.size == 1 else values.tolist()
    return label


def _classes(labels: Sequence[Any], path: Path, column: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes in natural order, and each record's; numbers with fractions and lists of labels are refused."""
    where = f"{printable(path)}, {column}"
    if any(isinstance(v, list | tuple | np.ndarray | dict) for v in labels):
        raise DataError(f"several labels for one record: that {NOT_YET}", where, "choose one label for each record")
    missing = sum(v is None or v != v or v == "" for v in labels)
    if missing:
        raise DataError(f"{missing} of {len(labels)} records have no label", where, "remove them")
    if any(isinstance(v, float) and not v.is_integer() for v in labels):
        raise DataError(
            f"the labels are numbers with fractions: regression {NOT_YET}", where, "make classes of them: high, low"
        )
    texts = [str(int(v)) if isinstance(v, float) else str(v) for v in labels]
    classes = tuple(sorted(set(texts), key=natural))
    if len(classes) < 2 or len(classes) > MOST_CLASSES:
        what = f"{len(classes):,} classes; 2 to {MOST_CLASSES:,} can be learnt"
        raise DataError(what, where, "is it the right column?")
    places = {name: i for i, name in enumerate(classes)}
    return classes, np.array([places[t] for t in texts], dtype=np.int64)


def _finite(values: np.ndarray, name: str, path: Path) -> np.ndarray:
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise DataError(
            f"{bad} of {len(values)} cells of {name!r} are empty or no numbers", printable(path),
            "fill them in, remove the rows, or leave the column out with columns",
        )  # fmt: skip
    return values


def _one_hot(values: np.ndarray, name: str, path: Path) -> np.ndarray:
    kinds, codes = np.unique(values, return_inverse=True)
    if len(kinds) > MOST_CATEGORIES:
        raise DataError(
            f"{name!r} has {len(kinds):,} different texts, more than {MOST_CATEGORIES}", printable(path),
            f"leave it out with columns, or say what it is: patient = {name!r}",
        )  # fmt: skip
    return np.eye(len(kinds))[codes]
