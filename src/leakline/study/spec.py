"""A study file: TOML in, a `Study` of cells out, or every mistake at once.

A study is a grid: scenarios x strategies x defences x sweeps x seeds. Presets and scenarios are overlays: tables
whose keys replace those of the study, so that ``preset = "desk"`` and ``"paper"`` live in one file.
"""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from leakline.errors import StudyError
from leakline.names import is_safe
from leakline.study.build import Mistakes, check_plain, check_values, read_toml
from leakline.study.cells import Cell, Study
from leakline.study.consent import Consent, Untrusted
from leakline.study.lines import key_lines
from leakline.study.scenario import ONE_LINE, STUDY, Share, attacks_of, cells_of, strongest_of
from leakline.study.sharing import task_of

MOST_TEXT = 2**20


class Mistaken(StudyError):
    """All mistakes of a study file; ``rest`` is what it says without them, for a check that looks further, or None."""

    def __init__(self, text: str, rest: Study | None = None) -> None:
        super().__init__(text)
        self.rest = rest


def built_in() -> dict[str, Path]:
    """The studies that come with leakline, by name: general ones, and those of the papers."""
    here = Path(__file__).parent
    paths = [*(here / "library").glob("*.toml"), *(here.parent / "papers").glob("*/*.toml")]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def find(study: str) -> Path:
    """A study file by path, or a built-in study by name."""
    path = Path(study)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise StudyError(
                f"there is no file {path.name}",
                study,
                "check the path; `leakline list studies` names the built-in ones",
            )
        return path
    studies = built_in()
    if study in studies:
        return studies[study]
    known = ", ".join(studies)
    raise StudyError(f"there is no study {study!r}", fix=f"give a .toml file, or one of: {known}")


def load(study: str, preset: str = "", sets: Sequence[str] = (), *, trust: bool = False) -> Study:
    """Read a study by path or name.

    Code that is not leakline's and that the study names ("net:build") lies in a file beside it or in an installed
    package that offers it. It is imported only if this user has agreed to it before, or with ``trust``: else
    `Untrusted` lists it.
    """
    path = find(study)
    if path.stat().st_size > MOST_TEXT:
        raise StudyError(f"{path.name} has more than {MOST_TEXT:,} bytes", path.name, "a study is a short text file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path.name} cannot be read: {error}", path.name, "a study is a UTF-8 text file") from error
    beside = (path.resolve().parent, Path.cwd())
    return parse(text, path.name, preset, sets, trust=trust, beside=beside)


def parse(
    text: str,
    file: str = "study.toml",
    preset: str = "",
    sets: Sequence[str] = (),
    *,
    share: Share = task_of,
    here: bool = True,
    trust: bool = False,
    beside: tuple[Path, ...] = (),
) -> Study:
    """Make a study of TOML text. ``sets`` are "key=v1,v2": each makes another axis of the grid.

    ``here = False``: the data set that the study names need not be on this machine (``share`` does not load it).
    ``trust``, ``beside``: as in `load`, the folders in which files of the user's own are looked for.
    """
    raw = read_toml(text, file)
    mistakes = Mistakes(file, key_lines(text), consent=Consent(beside, trust))
    check_plain(raw, (), mistakes)
    if mistakes.found:
        raise StudyError(mistakes.text())
    check_values(raw, STUDY, (), mistakes)
    raw = _tables(raw)  # go on with what can be read, so that a mistake here does not hide those further down
    presets = raw.get("presets", {})
    preset = preset or raw.get("preset", "") or ("desk" if "desk" in presets else "")
    if preset and preset not in presets:
        mistakes.unknown(("presets",), presets, kind=preset)
        raise StudyError(mistakes.text())
    base = overlay({k: v for k, v in raw.items() if k not in ("presets", "preset")}, presets.get(preset, {}))
    swept = [_sweep(item, base, mistakes) for item in sets]
    scenarios = base.get("scenarios") or {"": {}}
    notes: list[str] = []
    cells: list[Cell] = []
    for (label, extra), *choices in itertools.product(scenarios.items(), *swept):
        table = overlay({k: v for k, v in base.items() if k != "scenarios"}, extra)
        if not label.isprintable() or len(label) > 80:
            mistakes.add(
                ("scenarios",),
                f"a name is {ONE_LINE}, not {label[:80]!r}",
                "shorten it",
            )
        labels = {"scenario": label} if label else {}
        for path, value in choices:
            try:
                _put(table, path, value)
            except (AttributeError, IndexError, TypeError, ValueError) as error:
                raise StudyError(
                    f"-s {'.'.join(path)}: there is no such key in this study",
                    fix="for example -s training.rounds=5,10",
                ) from error
            if path != ("seeds",):
                labels[".".join(path)] = value
        for (key, *_), _ in choices:
            if key not in STUDY:
                near = get_close_matches(key, STUDY, n=1, cutoff=0.5)
                fix = f"did you mean {near[0]!r}?" if near else "for example -s training.rounds=5,10"
                raise StudyError(f"-s {key}: there is no such key in a study", fix=fix)
            if key not in _tables(table):
                raise StudyError(f"-s {key}: that is a table", fix="for example -s training.rounds=5,10")
        if "attacks" in extra and not isinstance(extra["attacks"], list):
            mistakes.add(("scenarios", label, "attacks"), "a scenario lists its own attacks", 'for example ["audit"]')
        listed = isinstance(extra.get("attacks"), list)
        own = attacks_of(table["attacks"], mistakes, ("scenarios", label)) if listed else None
        cells += [replace(cell, attacks=own) for cell in cells_of(table, labels, mistakes, notes, share, here)]
    attacks = strongest_of(base, mistakes) or attacks_of(base.get("attacks", []), mistakes)
    name = base.get("name", "study")
    if not isinstance(name, str) or not is_safe(name):
        mistakes.add(
            ("name",),
            "a name is letters, digits, '_', '.' and '-', at most 64 of them",
            'for example "my-study"',
        )
    if mistakes.found:
        met = isinstance(attacks, dict) or attacks.seats
        rest = Study("study", tuple(cells), attacks if met else {}) if cells else None
        raise Mistaken(mistakes.text(), rest)
    if mistakes.consent.refused:
        raise Untrusted(mistakes.consent.refused, file)
    if not cells:
        raise StudyError("nothing is left to run: " + "; ".join(notes), file, "get the data, or name others")
    study = Study(
        name,
        tuple(cells),
        attacks,
        base.get("delta", 1e-5),
        base.get("title", ""),
        text,
        tuple(dict.fromkeys(notes)),
        foreign=tuple(mistakes.consent.codes),
    )
    return replace(study.only(base.get("only", [])), narrowed=False)  # what the file asks for is the whole of it


def _tables(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The known keys of a study that have at least the right shape: tables, tables of tables, lists."""

    def fits(key: str, value: Any) -> bool:
        if key in ("presets", "scenarios"):
            return isinstance(value, Mapping) and all(isinstance(inner, Mapping) for inner in value.values())
        if key in ("data", "models", "training", "warm_start", "strategies", "defences"):
            return isinstance(value, Mapping)
        return isinstance(value, list) or value == "strongest" if key == "attacks" else True

    return {key: value for key, value in raw.items() if key in STUDY and fits(key, value)}


def overlay(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the keys of ``extra`` put over it; a table with its own ``use`` replaces the whole table."""
    result = dict(copy.deepcopy(dict(base)))
    for key, value in extra.items():
        old = result.get(key)
        merge = (
            isinstance(value, Mapping)
            and isinstance(old, Mapping)
            and ("use" not in value or value["use"] == old.get("use"))
        )
        # Strategies and defences named in an overlay are the ones to run, not additions.
        merge = merge and key not in ("strategies", "defences")
        result[key] = overlay(old, value) if merge else copy.deepcopy(value)  # type: ignore[arg-type]
    return result


def _sweep(item: str, base: Mapping[str, Any], mistakes: Mistakes) -> list[tuple[tuple[str, ...], Any]]:
    key, eq, values = item.partition("=")
    path = tuple(key.strip().split("."))
    if not eq or not values:
        raise StudyError(f"-s {item}: not of the form key=value", fix="for example -s training.rounds=5,10")
    parsed = []
    for value in re.split(r",(?![^\[{]*[\]}])", values):
        try:
            parsed.append((path, tomllib.loads(f"v = {value}")["v"]))
        except (ValueError, RecursionError):
            parsed.append((path, value))
    if path == ("seeds",) and all(type(value) is int for _, value in parsed):
        return [(path, [value for _, value in parsed])]  # seeds are an axis already: 0,1 are two seeds, not two sweeps
    return parsed


_NAMED = ("model", "partition", "features")
"""Keys whose value may be a name in place of a table."""


def _put(table: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    place: Any = table
    for part in path[:-1]:
        if isinstance(place, list):  # a stack of defences: "defences.global.0.clip", or its only member
            place = place[int(part)] if part.isdigit() else place[0].setdefault(part, {})
        else:
            inner = place.setdefault(part, {})
            if isinstance(inner, str) and part in _NAMED:  # model = "mlp" is short for a table
                inner = place[part] = {"use": inner}
            place = inner
    if isinstance(place, list):
        place = place[0]
    place[path[-1]] = value
