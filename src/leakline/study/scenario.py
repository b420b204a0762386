"""One scenario of a study: the keys that it may have, and the cells and attacks that its tables ask for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import pydantic

from leakline import attacks as attack_menu
from leakline import defences as defence_menu
from leakline import strategies as strategy_menu
from leakline import utility as loss_menu
from leakline.bench.training import Plan
from leakline.data.base import Task
from leakline.federation import Federation
from leakline.privacy import Seat
from leakline.settings import Table
from leakline.strategies import Strategy
from leakline.study import kinds
from leakline.study.build import Mistakes, build, check_values, parameters
from leakline.study.cells import Cell, following, follows
from leakline.study.data_table import data_of
from leakline.study.model_table import model_of
from leakline.study.sharing import Shared, task_of
from leakline.study.strongest import Strongest

Share = Callable[[Shared, int], Task]
"""Who turns the [data] table and a cell's seed into a task: `task_of`, unless the clients are on other machines."""

NO_DELTA = 0.1
"""From here on a delta is no privacy parameter (`Guarantee.verdict` calls it vacuous)."""
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
    "only": (list[str], []),
    **_TOP,
    "device": (str, "auto"),
}


def cells_of(
    table: dict[str, Any],
    labels: Mapping[str, Any],
    mistakes: Mistakes,
    notes: list[str],
    share: Share = task_of,
    here: bool = True,
) -> list[Cell]:
    """All cells of one scenario; with mistakes, which are noted, one seed of those that can be made all the same."""
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
    stacks = _with_sources(stacks, mistakes)
    for name in others:
        if name not in stacks:
            mistakes.unknown(("models", name), stacks)
    for kind, name in [*(("strategies", name) for name in strategies), *(("defences", name) for name in stacks)]:
        if not name.isprintable() or not 0 < len(name) <= 80:
            mistakes.add((kind,), f"a name is {ONE_LINE}, not {name[:80]!r}", "shorten it")
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
    if mistakes.consent.refused or data is None:
        return []
    if mistakes.found:
        strategies = {name: made for name, made in strategies.items() if made is not None}
        stacks = {name: stack for name, stack in stacks.items() if None not in stack and others.get(name, model)}
        seeds = seeds[:1]
    from leakline.study.device import resolve_device

    settings = {
        "plan": plan or Plan(), "warm_start": warm or Federation.warm_start, **(loop or {}),
        **{key: value for key, value in top.items() if key in _TOP},
        "device": resolve_device("cpu" if mistakes.found else top.get("device", "auto")),
        "delta": top.get("delta", STUDY["delta"][1]),
    }  # fmt: skip
    made = partial(_federation, partial(share, data), settings)
    return [
        Cell(
            {**labels, "strategy": s, "defence": d, "seed": seed},
            partial(made, others.get(d, model), strategies[s], stacks[d], seed),
            follows=follows(stacks[d]),
        )
        for s, d, seed in itertools.product(strategies, stacks, seeds)
    ]


def _with_sources(stacks: Mapping[str, tuple[Any, ...]], mistakes: Mistakes) -> dict[str, tuple[Any, ...]]:
    """The stacks, those that follow another knowing it, and behind it; None stands for one that cannot."""
    whole, made = {name: stack for name, stack in stacks.items() if None not in stack}, dict(stacks)
    for name, stack in whole.items():
        if not (of := follows(stack)):
            continue
        made[name] = (None,)
        if of not in stacks:
            mistakes.unknown(("defences", name, "of"), [other for other in stacks if other != name], kind=of)
        elif of in whole:
            try:
                made[name] = following(stack, whole[of])
            except ValueError as error:
                mistakes.add(("defences", name, "of"), str(error))
    return dict(sorted(made.items(), key=lambda item: bool(follows(whole.get(item[0], ())))))


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


def strongest_of(table: Mapping[str, Any], mistakes: Mistakes) -> Strongest | None:
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


def attacks_of(tables: Sequence[Any], mistakes: Mistakes, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """The attacks of a list, by name; a name is that of the menu unless one is given."""
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
