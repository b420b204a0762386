"""A sheet of what is known of files: a CSV with one row for each file or each patient; and patterns of folder names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from leakline.data.csv_signals import read_csv
from leakline.data.people import FIELDS, Record
from leakline.errors import DataError
from leakline.names import printable

KEYS = ("file", "patient")


@dataclass(frozen=True)
class Sheet:
    """Rows by file or by patient: ``key`` says which. ``fields`` are the columns that it has."""

    name: str
    key: str
    rows: Mapping[str, Record]
    fields: tuple[str, ...]

    def match(
        self, records: Mapping[str, Record], unread: Collection[str] = ()
    ) -> tuple[dict[str, Record], list[str], int]:
        """Records by file with what the sheet knows of them, and what does not fit: lines with counts, and how many.

        A file is known by its path below the folder, or by its name alone where the sheet has no folders. Files
        without a row are left out. ``unread`` are files that are there and cannot be read: their rows are not idle.
        """
        names = {file: self._name(file, record) for file, record in records.items()}
        known = {file: _over(records[file], self.rows[name]) for file, name in names.items() if name in self.rows}
        bare = [file for file in records if file not in known]
        there = {*names.values(), *(self._name(file, Record()) for file in unread)}
        idle = [row for row in self.rows if row not in there]
        lines = []
        if idle:
            lines.append(f"{len(idle)} of {len(self.rows)} rows of {self.name} have no file: {_few(idle)}")
        if bare:
            lines.append(f"{len(bare)} of {len(records)} files have no row in {self.name}: {_few(bare)}")
        return known, lines, len(idle) + len(bare)

    def _name(self, file: str, record: Record) -> str:
        if self.key == "patient":
            return record.patient
        return file if file in self.rows else PurePosixPath(file).name


def read_sheet(path: Path) -> Sheet:
    """A CSV whose columns are some of file, label, site, patient, sex, age, split; others are passed over.

    ``file`` is a path below the data's folder (or a file's name); without it there is one row for each patient.
    """
    frame = read_csv(path, text=True)
    frame.columns = frame.columns.str.lower()
    name = printable(path.name)
    key = next((key for key in KEYS if key in frame.columns), "")
    if not key:
        raise DataError(
            "the sheet has neither a column file nor a column patient",
            name, f"its columns: {printable(', '.join(map(str, frame.columns)))}",
        )  # fmt: skip
    fields = tuple(field for field in FIELDS if field in frame.columns)
    rows: dict[str, Record] = {}
    twice: set[str] = set()
    for row in frame[list(dict.fromkeys([key, *fields]))].to_dict("records"):
        values = {field: str(row[field]).strip() for field in fields}
        entry = _plain(str(row[key])) if key == "file" else str(row[key]).strip()
        record = Record(**values)
        if rows.setdefault(entry, record) != record:
            twice.add(entry)
    if twice:
        raise DataError(
            f"{len(twice)} {key}s have rows that contradict each other: {_few(sorted(twice))}",
            name, f"leave one row for each {key}",
        )  # fmt: skip
    return Sheet(name, key, rows, fields)


def pattern_of(text: str) -> re.Pattern[str]:
    """What a pattern of paths means: ``{site}/{label}/{patient}_*.png``, a name in braces for what stands there.

    Names are those of `FIELDS`, each once; ``*`` is anything within a folder's or file's name.
    """
    pieces = re.split(r"(\{\w*\}|\*)", text)
    names = [piece[1:-1] for piece in pieces if piece.startswith("{")]
    strange = [name for name in names if name not in FIELDS]
    if strange or not names or len(set(names)) != len(names):
        raise ValueError(f"a pattern names some of {', '.join(FIELDS)}, each once, in braces: {text!r}")
    parts = {"*": r"[^/]*"} | {f"{{{name}}}": rf"(?P<{name}>[^/]+?)" for name in names}
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces))


def by_pattern(pattern: re.Pattern[str], files: Sequence[str]) -> tuple[dict[str, Record], list[str]]:
    """Records by file for the files that a pattern fits, and those that it does not fit."""
    matches = {file: pattern.fullmatch(file) for file in files}
    fits = {file: Record(**match.groupdict()) for file, match in matches.items() if match is not None}
    return fits, [file for file in files if file not in fits]


def _over(record: Record, row: Record) -> Record:
    """A record with what a row says; what it does not say stays."""
    return replace(record, **{field: getattr(row, field) for field in FIELDS if getattr(row, field)})


def _plain(file: str) -> str:
    return str(PurePosixPath(file.strip().replace("\\", "/")))


def _few(names: Sequence[str]) -> str:
    return printable(", ".join(names[:3]) + (", ..." if len(names) > 3 else ""))
