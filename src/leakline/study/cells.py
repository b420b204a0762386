"""The grid of a study: cells with labels, and the study that holds them."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from leakline.defences import Defence
from leakline.errors import StudyError
from leakline.federation import Federation
from leakline.foreign import Foreign
from leakline.names import is_safe, label_text
from leakline.study.strongest import Choice, Strongest


@dataclass(frozen=True)
class Cell:
    """One square of the grid: its labels, and how to make its federation when its turn comes."""

    labels: Mapping[str, Any]
    federation: Callable[[], Federation] = field(repr=False)
    attacks: Mapping[str, Any] | None = None
    """What meets this cell, where its scenario names attacks of its own; None: the study's."""
    follows: str = ""
    """The defence of the cell with otherwise the same labels that has to be run before this one; "": none."""

    @property
    def name(self) -> str:
        """The labels in one line."""
        return f"{self.setting} seed {self.labels.get('seed', 0)}"

    @property
    def setting(self) -> str:
        """The labels but the seed, in one line; sweeps with their keys."""
        return " ".join(label_text(k, v) for k, v in self.labels.items() if k != "seed")


@dataclass(frozen=True)
class Study:
    """A grid of federations and the attacks that meet each of them."""

    name: str
    cells: tuple[Cell, ...]
    attacks: Mapping[str, Any] | Strongest = field(default_factory=dict)
    """By name; or how they are chosen for each cell."""
    delta: float = 1e-5
    title: str = ""
    text: str = field(default="", repr=False)
    notes: tuple[str, ...] = ()
    """What a reader must know about how the study was resolved (an embedded data set in place of a missing one)."""
    narrowed: bool = False
    """Whether `only` left cells out; those that were run before then stay in the run directory's grid."""
    foreign: tuple[Foreign, ...] = ()
    """Code outside leakline that the study runs."""

    def __post_init__(self) -> None:
        if not is_safe(self.name):
            raise ValueError(f"a study's name is letters, digits, '_', '.' and '-', at most 64: {self.name[:80]!r}")

    def attacks_on(self, cell: Cell) -> Mapping[str, Any]:
        """The attacks that meet a cell, by name."""
        choice = self.choice_on(cell)
        if choice is not None:
            return choice.attacks
        assert not isinstance(self.attacks, Strongest)
        return self.attacks if cell.attacks is None else cell.attacks

    def choice_on(self, cell: Cell) -> Choice | None:
        """What was chosen for a cell, and why, where the study asks for the strongest attacks; None elsewhere."""
        if not isinstance(self.attacks, Strongest) or cell.attacks is not None:
            return None
        key = id(cell)
        if key not in self._choices:
            self._choices[key] = (cell, self.attacks.on(cell.federation()))  # the cell is held, so its id stays its own
        return self._choices[key][1]

    @cached_property
    def _choices(self) -> dict[int, tuple[Cell, Choice]]:
        return {}

    @property
    def every_attack(self) -> tuple[str, ...]:
        """The names of all attacks that meet some cell."""
        return tuple(dict.fromkeys(name for cell in self.cells for name in self.attacks_on(cell)))

    def unattacked(self) -> Study:
        """The same cells, met by no attack."""
        return replace(self, attacks={}, cells=tuple(replace(cell, attacks=None) for cell in self.cells))

    def inside(self, cell: Cell, federation: Federation, nodes: bool) -> dict[str, Any]:
        """The attacks on a cell that train where it does; ``nodes``: on other people's machines.

        Nodes' patients are trained on once more only where a study asks for it by name.
        """
        if nodes and self.choice_on(cell) is not None:
            return {}
        return {name: a for name, a in self.attacks_on(cell).items() if a.inside(federation, nodes)}

    def trained_at_nodes(self) -> Study:
        """The same cells, met only by attacks that train at the nodes as they do."""
        met = (self.inside(cell, cell.federation(), True) for cell in self.cells)
        cells = tuple(replace(cell, attacks=own) for cell, own in zip(self.cells, met, strict=True))
        return replace(self, attacks={}, cells=cells)

    def only(self, wanted: Sequence[str]) -> Study:
        """The same study with the cells whose labels match: ``["strategy=fedavg,fedyogi", "seed=0"]``."""
        cells = self.cells
        for wish in wanted:
            label, equals, values = wish.partition("=")
            there = list(dict.fromkeys(str(c.labels[label]) for c in self.cells if label in c.labels))
            known = sorted({name for c in self.cells for name in c.labels})
            if not equals or not there:
                raise StudyError(f"only {wish}: no such label", self.name, f"LABEL=VALUE, with LABEL in {known}")
            chosen = _listed(values, there)
            if unknown := [v for v in chosen if v not in there]:
                raise StudyError(f"only {wish}: no cell has {label} = {unknown[0]}", self.name, f"one of {there}")
            cells = tuple(c for c in cells if str(c.labels.get(label)) in chosen)
        if not cells:
            raise StudyError("only: no cell is left", self.name, "ask for values that occur together")
        taken = {id(cell) for cell in cells}
        needed = {id(source): source for cell in cells if (source := self.source_of(cell)) and id(source) not in taken}
        cells = tuple(cell for cell in self.cells if id(cell) in taken or id(cell) in needed)
        more = [f"{source.name} is run too: a chosen cell follows it" for source in needed.values()]
        narrowed = len(cells) < len(self.cells) or self.narrowed
        return replace(self, cells=cells, narrowed=narrowed, notes=(*self.notes, *more))

    def source_of(self, cell: Cell) -> Cell | None:
        """The cell that has to be run before another, with the same labels but for the defence; None: no cell has."""
        if not cell.follows:
            return None
        found = self._by_labels.get(_labelled({**cell.labels, "defence": cell.follows}))
        if found is None:
            raise StudyError(
                f'it follows the defence "{cell.follows}", and no cell with that defence has otherwise its labels',
                cell.name,
                f'give the study a defence "{cell.follows}" too',
            )
        return found

    @cached_property
    def _by_labels(self) -> dict[tuple[str, ...], Cell]:
        return {_labelled(cell.labels): cell for cell in self.cells}

    def run(self, out: str | Path = "", workers: int = 0, at_once: int = 1) -> Path:
        """Train what is missing, attack, ``at_once`` cells at a time; returns the directory (default: runs/NAME)."""
        from leakline.study.run import run_study

        root = Path(out) if out else Path("runs") / self.name
        failed = [outcome.error for outcome in run_study(self, root, workers=workers, at_once=at_once) if outcome.error]
        if failed:
            raise StudyError(f"{len(failed)} of {len(self.cells)} cells failed", root.name, failed[0])
        return root

    def _repr_html_(self) -> str:
        labels = list(dict.fromkeys(label for cell in self.cells for label in cell.labels))
        values = [dict.fromkeys(str(cell.labels.get(label, "")) for cell in self.cells) for label in labels]
        rows = [
            ("cells", str(len(self.cells))),
            *((label, ", ".join(shown)) for label, shown in zip(labels, values, strict=True)),
            ("attacks", ", ".join(self.every_attack) or "none"),
            *(("note", note) for note in self.notes),
        ]
        body = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows)
        return f"<table><caption>{html.escape(self.title or self.name)}</caption>{body}</table>"


def _labelled(labels: Mapping[str, Any]) -> tuple[str, ...]:
    """Labels as something to look a cell up by; a swept list cannot be hashed."""
    return tuple(sorted(f"{key}={value}" for key, value in labels.items()))


def _listed(values: str, known: Sequence[str]) -> list[str]:
    """Values in one text with commas between; those that are known may have commas of their own."""
    found: list[str] = []
    while values:
        longest = max((k for k in known if f"{values},".startswith(f"{k},")), key=len, default=values.partition(",")[0])
        found.append(longest)
        values = values[len(longest) + 1 :]
    return found or [""]


def follows(stack: Iterable[Defence]) -> str:
    """The name of the stack that one follows; "": none."""
    return next((defence.follows for defence in stack if defence.follows), "")


def following(stack: Sequence[Defence], source: Sequence[Defence]) -> tuple[Defence, ...]:
    """A stack that follows another, knowing it."""
    return tuple(defence.following(source) if defence.follows else defence for defence in stack)


def _with_sources(stacks: Mapping[Any, Sequence[Defence]]) -> dict[Any, Sequence[Defence]]:
    """Stacks by name, those that follow another knowing it, and behind it."""
    for name, stack in stacks.items():
        if (of := follows(stack)) and of not in stacks:
            raise ValueError(f'{name} follows "{of}", and there is no such defence: one of {[*stacks]}')
    alone = {name: stack for name, stack in stacks.items() if not follows(stack)}
    return alone | {n: following(stack, stacks[follows(stack)]) for n, stack in stacks.items() if n not in alone}


def grid(base: Federation, **axes: Mapping[str, Any] | Sequence[Any]) -> tuple[Cell, ...]:
    """Federations that differ from ``base`` along the given axes.

    An axis is a setting of a `Federation` with its values, by name where they need one:
    ``grid(base, defences={"none": (), "dp": (GlobalDP(1, 1),)}, seed=range(5))``.
    """
    named = {k: dict(v) if isinstance(v, Mapping) else {value: value for value in v} for k, v in axes.items()}
    if "defences" in named:
        named["defences"] = _with_sources(named["defences"])
    label = {"defences": "defence"}
    fixed = {"strategy": "given", "defence": "given" if base.defences else "none", "seed": base.seed}
    cells = []
    for names in itertools.product(*named.values()):
        chosen = dict(zip(named, names, strict=True))
        federation = base.but(**{k: named[k][name] for k, name in chosen.items()})
        cells.append(
            Cell(
                fixed | {label.get(k, k): name for k, name in chosen.items()},
                partial(lambda f: f, federation),
                follows=follows(federation.defences),
            )
        )
    return tuple(cells)
