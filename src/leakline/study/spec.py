"""A study file: TOML in, a `Study` of cells out, or every mistake at once.

A study is a grid: scenarios x strategies x defences x sweeps x seeds. Presets and scenarios are overlays: tables
whose keys replace those of the study, so that ``preset = "desk"`` and ``"paper"`` live in one file.
"""

from __future__ import annotations

import copy
import itertools
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from leakline import attacks as attack_menu
from leakline import defences as defence_menu
from leakline import strategies as strategy_menu
from leakline import utility as loss_menu
from leakline.bench.training import Plan
from leakline.data.base import Task
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.names import is_safe
from leakline.privacy import Seat
from leakline.settings import Table
from leakline.strategies import Strategy
from leakline.study import kinds
from leakline.study.build import Mistakes, build, check_plain, check_values, parameters, read_toml
from leakline.study.cells import Cell, Study
from leakline.study.consent import Consent, Untrusted
from leakline.study.data_table import data_of
from leakline.study.lines import key_lines
from leakline.study.model_table import model_of
from leakline.study.sharing import Shared, task_of
from leakline.study.strongest import Strongest


def built_in() -> dict[str, Path]:
    """The studies that come with leakline, by name: general ones, and those of the papers."""
    here = Path(__file__).parent
    paths = [*(here / "library").glob("*.toml"), *(here.parent / "papers").glob("*/*.toml")]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


Share = Callable[[Shared, int], Task]
"""Who turns the [data] table and a cell's seed into a task: `task_of`, unless the clients are on other machines."""

NO_DELTA = 0.1
"""From here on a delta is no privacy parameter (`Guarantee.verdict` calls it vacuous)."""
MOST_TEXT = 2**20
MOST_SEEDS = 10_000
MOST_CELLS = 100_000
ONE_LINE = "one line of at most 80 printable characters"

_Count = Annotated[int, pydantic.Field(ge=1)]


def _settings(table: Table) -> dict[str, tuple[Any, Any]]:
    """The keys of a table that set a federation: what may be given for each, and its default."""
    keys = Federation.keys(table).items()
    return {name: (Annotated[hint, pydantic.Field(**f.metadata["limits"])], f.default) for name, (hint, f) in keys}


_TOP = _settings("study")
LOOP = _settings("training") | {"batches": (dict[str, _Count], {})}  # a table in the file, pairs in a federation
STUDY: dict[str, tuple[Any, Any]] = {
    "name": (str, ...),
    "title": (str, ""),
    "seeds": (
        Annotated[list[int], pydantic.Field(max_length=MOST_SEEDS)] | Annotated[int, pydantic.Field(le=MOST_SEEDS)],
        1,
    ),
    "delta": (Annotated[float, pydantic.Field(gt=0, lt=1)], 1e-5),
    "reproduces": (str, ""),
    "preset": (str, ""),
    "data": (dict[str, Any], ...),
    "model": (dict[str, Any] | str, ...),
    "models": (dict[str, dict[str, Any] | str], {}),
    "training": (dict[str, Any], {}),
    "warm_start": (dict[str, Any], {}),
    "strategies": (dict[str, Any], {"fedavg": {"use": "fedavg"}}),
    "defences": (dict[str, Any], {"none": []}),
    "attacks": (list[Any] | Literal["strongest"], []),
    "seats": (list[Literal["server", "malicious-server", "client", "public"]], ["server", "client", "public"]),
    "attack_minutes": (Annotated[float, pydantic.Field(gt=0)], 10.0),
    "scenarios": (dict[str, dict[str, Any]], {}),
    "presets": (dict[str, dict[str, Any]], {}),
    **_TOP,
    "device": (str, "auto"),
}


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
                f"a name is one line of at most 80 printable characters, not {label[:80]!r}",
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
        if choices and table.keys() != _tables(table).keys():
            raise StudyError(f"-s {choices[0][0][0]}: that is a table", fix="for example -s training.rounds=5,10")
        if "attacks" in extra and not isinstance(extra["attacks"], list):
            mistakes.add(("scenarios", label, "attacks"), "a scenario lists its own attacks", 'for example ["audit"]')
        listed = isinstance(extra.get("attacks"), list)
        own = _attacks(table["attacks"], mistakes, ("scenarios", label)) if listed else None
        cells += [replace(cell, attacks=own) for cell in _cells(table, labels, mistakes, notes, share, here)]
    attacks = _strongest(base, mistakes) or _attacks(base.get("attacks", []), mistakes)
    name = base.get("name", "study")
    if not isinstance(name, str) or not is_safe(name):
        mistakes.add(
            ("name",),
            "a name is letters, digits, '_', '.' and '-', at most 64 of them",
            'for example "my-study"',
        )
    if mistakes.found:
        raise StudyError(mistakes.text())
    if mistakes.consent.refused:
        raise Untrusted(mistakes.consent.refused, file)
    return Study(
        name,
        tuple(cells),
        attacks,
        base.get("delta", 1e-5),
        base.get("title", ""),
        text,
        tuple(dict.fromkeys(notes)),
        foreign=tuple(mistakes.consent.codes),
    )


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


def _put(table: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    place: Any = table
    for part in path[:-1]:
        if isinstance(place, list):  # a stack of defences: "defences.global.0.clip", or its only member
            place = place[int(part)] if part.isdigit() else place[0].setdefault(part, {})
        else:
            place = place.setdefault(part, {})
    if isinstance(place, list):
        place = place[0]
    place[path[-1]] = value


def _cells(
    table: dict[str, Any],
    labels: Mapping[str, Any],
    mistakes: Mistakes,
    notes: list[str],
    share: Share = task_of,
    here: bool = True,
) -> list[Cell]:
    """All cells of one scenario, or none with the mistakes noted."""
    top = check_values(table, STUDY, (), mistakes) or {}
    data = data_of(table["data"], mistakes, notes, here) if "data" in table else None
    loop_keys, plan_keys = dict(LOOP), {k: v for k, v in parameters(Plan).items() if k != "proximal"}
    training = table.get("training", {})
    known = loop_keys | plan_keys
    for key in training:
        if key not in known:
            mistakes.unknown(("training", key), known)
    loop = check_values({k: v for k, v in training.items() if k in loop_keys}, loop_keys, ("training",), mistakes)
    plan = _plan({k: v for k, v in training.items() if k in plan_keys}, plan_keys, ("training",), mistakes, Plan())
    if loop is not None and (loss := loop.get("loss", "default")) not in ("default", *loss_menu.MENU):
        mistakes.unknown(("training", "loss"), loss_menu.MENU, kind=loss)
    warm = _plan(table.get("warm_start", {}), plan_keys, ("warm_start",), mistakes, Federation.warm_start)
    model = model_of(table["model"], ("model",), mistakes) if "model" in table else None
    others = {name: model_of(entry, ("models", name), mistakes) for name, entry in table.get("models", {}).items()}
    strategies = {
        name: build(strategy_menu.MENU, entry, ("strategies", name), mistakes, kinds.STRATEGY)
        for name, entry in table.get("strategies", STUDY["strategies"][1]).items()
    }
    stacks: dict[str, tuple[Any, ...]] = {}
    for name, stack in table.get("defences", STUDY["defences"][1]).items():
        entries = stack if isinstance(stack, list) else [stack]
        stacks[name] = tuple(
            build(defence_menu.MENU, entry, ("defences", name, i), mistakes, kinds.DEFENCE)
            for i, entry in enumerate(entries)
        )
    for name in others:
        if name not in stacks:
            mistakes.unknown(("models", name), stacks)
    for kind, name in [*(("strategies", name) for name in strategies), *(("defences", name) for name in stacks)]:
        if not name.isprintable() or not 0 < len(name) <= 80:
            mistakes.add(
                (kind,), f"a name is one line of at most 80 printable characters, not {name[:80]!r}", "shorten it"
            )
    for kind, chosen in (("strategies", strategies), ("defences", stacks)):
        if not chosen:
            mistakes.add((kind,), "at least one is needed", "leave the table out for the default")
    for name, strategy in strategies.items():
        if strategy is not None and strategy.warm_start and not table.get("data", {}).get("server_validation"):
            mistakes.add(
                ("strategies", name), "starts from a model trained on the server's validation data, and there are none",
                "set server_validation = 0.1 in [data]",
            )  # fmt: skip
    _delta(top, stacks, mistakes)
    seeds = top.get("seeds", 1)
    seeds = list(range(seeds)) if isinstance(seeds, int) else seeds
    if not seeds:
        mistakes.add(("seeds",), "at least one seed is needed", "for example seeds = [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        mistakes.add(("seeds",), "the same seed twice counts one run twice", "give each once")
    if len(seeds) * len(strategies) * len(stacks) > MOST_CELLS:
        mistakes.add((), f"more than {MOST_CELLS:,} cells", "split the study")
    if mistakes.found or mistakes.consent.refused or data is None:
        return []
    from leakline.study.device import resolve_device

    settings = {
        "plan": plan, "warm_start": warm, **(loop or {}),
        **{key: value for key, value in top.items() if key in _TOP},
        "device": resolve_device(top.get("device", "auto")),
        "delta": top.get("delta", STUDY["delta"][1]),
    }  # fmt: skip
    made = partial(_federation, partial(share, data), settings)
    return [
        Cell(
            {**labels, "strategy": s, "defence": d, "seed": seed},
            partial(made, others.get(d, model), strategies[s], stacks[d], seed),
        )
        for s, d, seed in itertools.product(strategies, stacks, seeds)
    ]


def _delta(top: Mapping[str, Any], stacks: Mapping[str, tuple[Any, ...]], mistakes: Mistakes) -> None:
    """A promise that may fail outright one time in ten is none, unless somebody else's is repeated."""
    if top.get("reproduces"):
        return
    fix = 'below 1 / (number of units), such as 1e-5; reproduces = "..." names a paper that has it so'
    if top.get("delta", 0.0) >= NO_DELTA:
        mistakes.add(("delta",), f"{top['delta']:g}: the promise might fail outright that often", fix)
    for name, stack in stacks.items():
        for place, defence in enumerate(stack):
            if defence is not None and defence.wish is not None and defence.wish.delta >= NO_DELTA:
                at = ("defences", name, place, "delta")
                mistakes.add(at, f"{defence.wish.delta:g}: the promise might fail outright that often", fix)


def _federation(
    share: Callable[[int], Task],
    settings: Mapping[str, Any],
    model: Any,
    strategy: Strategy,
    defences: tuple[Any, ...],
    seed: int,
) -> Federation:
    defences = tuple(defence.under(settings["delta"]) for defence in defences)
    settings = {key: value for key, value in settings.items() if key != "delta"}
    return Federation(share(seed), model, strategy=strategy, defences=defences, seed=seed).but(**settings)


def _plan(
    table: Mapping[str, Any], keys: Mapping[str, tuple[Any, Any]], path: tuple[str, ...], mistakes: Mistakes, base: Plan
) -> Plan | None:
    values = check_values(table, keys, path, mistakes)
    try:
        return None if values is None else replace(base, **values)
    except ValueError as error:
        name = str(error).split()[0]
        mistakes.add((*path, name), str(error), f"by default {name} = {getattr(base, name, '...')}")
        return None


def _strongest(table: Mapping[str, Any], mistakes: Mistakes) -> Strongest | None:
    """How attacks are chosen, where a study asks for the strongest."""
    if table.get("attacks") != "strongest":
        for key in ("seats", "attack_minutes"):
            if key in table:
                mistakes.add((key,), 'is for attacks = "strongest"', "leave it out, or ask for them")
        return None
    seats = table.get("seats", STUDY["seats"][1])
    if not seats:
        mistakes.add(
            ("seats",), "at least one seat is needed", "leave it out for the server, participants and the public"
        )
    known = {str(seat) for seat in Seat}
    return Strongest(tuple(Seat(s) for s in seats if s in known), float(table.get("attack_minutes", 10.0)))


def _attacks(tables: Sequence[Any], mistakes: Mistakes, path: tuple[str, ...] = ()) -> dict[str, Any]:
    built: dict[str, Any] = {}
    for i, table in enumerate(tables):
        name = table.get("name", table.get("use", "")) if isinstance(table, Mapping) else str(table)
        if isinstance(table, Mapping):
            table = {k: v for k, v in table.items() if k != "name"}
        if name in built:
            mistakes.add((*path, "attacks", i), f'two attacks are called "{name}"', 'give one a name = "..."')
        attack = build(attack_menu.MENU, table, (*path, "attacks", i), mistakes, kinds.ATTACK)
        if attack is not None:
            built[name] = attack
    return built
