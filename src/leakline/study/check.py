"""What `leakline check` says before anything is trained: problems, partition, cards, and the bill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from leakline import data as data_package
from leakline.attacks.base import Attack
from leakline.cards import Card, formal_card
from leakline.data.base import Data
from leakline.errors import LeaklineError, StudyError
from leakline.federation import Federation
from leakline.models import preflight
from leakline.names import label_text
from leakline.privacy import Unit
from leakline.readings import too_little
from leakline.runtimes.machine import cores
from leakline.study.cells import Cell, Study
from leakline.study.disk import disk_of
from leakline.study.judges import NOT_ALIKE, baseline_of
from leakline.study.run import cell_mistakes, check_model, model_of, said_once
from leakline.study.shared_work import SharedWork
from leakline.study.sharing import look_again, looking
from leakline.study.sources import check_source
from leakline.study.spec import Mistaken
from leakline.study.strongest import Choice
from leakline.study.timing import Samples, Steps, Timed, timed_pass
from leakline.weights import constants

EMPTY, SKEWED = 0.05, 0.1
"""From this share of empty test masks on, and from this much above 1 / classes on, a check says what a constant answer
would score: nothing marked, or the commonest class."""


@dataclass
class Bill:
    """What a study would cost: an estimate from one timed pass over a few batches.

    ``worlds`` are the minutes, of all ``minutes``, for federations that attacks train to compare with, ``searches``
    those for searches that end when they usually do, ``most`` if none ends early, ``besides`` those for what else
    attacks do of which they give samples (forests, audits). The boosted trees of membership-inference are not in it:
    seconds for each seat and cell, beside the shadows that it trains.
    """

    minutes: float = 0.0
    worlds: float = 0.0
    searches: float = 0.0
    most: float = 0.0
    besides: float = 0.0
    memory_mb: float = 0.0
    disk_mb: float = 0.0

    @property
    def attacks(self) -> float:
        """The minutes for attacks, whatever they do."""
        return self.worlds + self.searches + self.besides


@dataclass
class Checked:
    """The answer of a check."""

    name: str
    cells: int
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    partition: dict[str, list[list[Any]]] = field(default_factory=dict)
    cards: list[Card] = field(default_factory=list)
    bill: Bill = field(default_factory=Bill)
    wire: dict[str, dict[str, int]] = field(default_factory=dict)
    """By scenario: how many values travel, of how many there are, and the bytes to and from a client in a round."""
    shared: SharedWork = field(default_factory=SharedWork)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "name": self.name, "cells": self.cells, "notes": self.notes, "problems": self.problems,
            "warnings": self.warnings, "partition": self.partition, "cards": [c.as_dict() for c in self.cards],
            "minutes": self.bill.minutes, "minutes_for_attacks": self.bill.attacks,
            "memory_mb": self.bill.memory_mb, "disk_mb": self.bill.disk_mb, "wire": self.wire,
            "shared": self.shared.as_dict(),
        }  # fmt: skip

    def show(self, console: Any, print_card: Callable[[Card], None]) -> None:
        """On a terminal."""
        from rich.table import Table

        for scenario, rows in self.partition.items():
            table = Table(title=f"who holds what {scenario}".strip(), title_justify="left")
            for i, head in enumerate(rows[0]):
                table.add_column(str(head), justify="left" if i == 0 else "right")
            for row in rows[1:]:
                table.add_row(*[str(v) for v in row])
            console.print(table)
        for card in self.cards:
            print_card(card)
        for text in self.notes:
            console.print(f"note: {text}")
        for text in self.warnings:
            console.print(f"warning: {text}")
        for text in self.problems:
            console.print(f"problem: {text}", style="bold red")
        for scenario, sizes in self.wire.items():
            console.print(
                f"{scenario + ': ' if scenario else ''}{sizes['values']:,} of the model's {sizes['all']:,} values "
                f"travel: {sizes['bytes']:,} bytes a round to each client, and as many back"
            )
        for text in self.shared.lines() if self.shared.cells > 1 else ():
            console.print(f"work: {text}")
        console.print(f"\n{self._last_line()} Nothing was trained.")

    def _last_line(self) -> str:
        """What all of it costs, or that it cannot be told yet."""
        bill, many = self.bill, cores()
        priced = (
            f"{self.shared.cells} of {self.cells} cells" if self.shared.cells < self.cells else f"{self.cells} cells"
        )
        if not self.shared.cells:
            return f"{self.name}: {self.cells} cells; what they take is told once the problems above are mended."
        return (
            f"{self.name}: {priced}, about {bill.minutes:.1f} minutes on {many} core{'s' * (many > 1)}"
            + (f" ({bill.worlds:.1f} of them for the worlds that attacks compare)" if bill.worlds else "")
            + (f" ({bill.searches:.1f} of them for searches, which take at most {bill.most:.1f})" if bill.most else "")
            + (f" ({bill.besides:.1f} of them for what attacks learn or play)" if bill.besides else "")
            + f", {bill.memory_mb:.0f} MB of memory, {bill.disk_mb:.0f} MB on disk."
        )


def check_study(study: Study) -> Checked:
    """Build every federation, look at model and data, compute every formal card, time a few batches.

    Where files are refused the rest is looked at all the same, so that all problems are said at once.
    """
    look_again()
    return _checked(replace(study))  # attacks that are chosen for what is left of refused data are not the study's


def look_further(mistaken: Mistaken) -> StudyError:
    """The mistakes of a study file, and below them what is wrong with the rest of it: data, model, what goes together.

    The rest is as if keys that are not known had been left out, or were those that they are nearest to.
    """
    try:
        found = check_study(mistaken.rest).problems if mistaken.rest is not None else []
    except Exception:  # half a study may break anything, and that is not what is wrong with it
        found = []
    return StudyError("\n".join([mistaken.what, *(f"problem: {text}" for text in found)]))


def _checked(study: Study) -> Checked:
    foreign = [f"this study runs code that is not leakline's: {code}" for code in study.foreign]
    checked = Checked(study.name, len(study.cells), [*study.notes, *foreign])
    timed: dict[tuple[Any, ...], Timed] = {}
    seen: set[tuple[Any, ...]] = set()
    wrong: dict[str, list[str]] = {}
    statistics: dict[str, list[str]] = {}
    chosen: dict[str, list[str]] = {}
    asked: dict[tuple[Any, ...], float] = {}
    steps = Steps()
    samples = Samples()

    def note(cell: Cell, errors: Iterable[Exception]) -> None:
        for text in dict.fromkeys(str(error) for error in errors):
            wrong.setdefault(text, []).append(cell.name)

    for cell in study.cells:
        labels = tuple((k, str(v)) for k, v in cell.labels.items() if k != "seed")  # a swept list cannot be a key
        try:
            with looking() as look:
                federation = cell.federation()
            note(cell, look.wrong)
            if look.other:  # who holds what is not known, and attacks, cards and the bill depend on it
                check_model(federation)
                federation, found = _granted(federation)
                note(cell, [*found, *cell_mistakes(federation, {})])
                continue
            with looking():
                attacks = study.attacks_on(cell)
            scenario = tuple((k, v) for k, v in labels if k not in ("strategy", "defence"))
            networks = (*scenario, model_of(federation))
            if networks not in timed:
                checked.partition[" ".join(label_text(k, v) for k, v in scenario)] = _partition(federation)
                check_model(federation)
                looks = (_look_at_classes, _look_at_model, _look_at_masks)
                remarks = [*federation.task.remarks, *(text for look in looks for text in look(federation))]
                checked.warnings += [w for w in remarks if not any(w in said for said in (*checked.warnings, *wrong))]
                timed[networks] = timed_pass(federation)
                _note_wire(checked.wire, " ".join(str(v) for _, v in scenario), cell, federation)
            federation, found = _granted(federation)
            check_source(study, cell, federation)
            if found := [*found, *cell_mistakes(federation, attacks)]:
                note(cell, found)
                continue
            remarks = [text for attack in attacks.values() for text in attack.remarks(federation)]
            remarks += _look_at_effort(attacks, federation)
            checked.warnings += [w for w in dict.fromkeys(remarks) if w not in checked.warnings]
            if labels not in seen:
                seen.add(labels)
                for text in _chosen(study.choice_on(cell)):
                    chosen.setdefault(text, []).append(" ".join(str(v) for _, v in labels))
                for text in _look_at_statistics(federation):
                    statistics.setdefault(text, []).append(str(cell.labels.get("defence", "")))
                card = formal_card(cell.setting, federation, study.delta)
                checked.cards.append(card)
                checked.warnings += [w for w in _look_at_delta(card, federation) if w not in checked.warnings]
        except (LeaklineError, ValueError) as error:
            note(cell, [error])
            continue
        took = timed[networks]
        starts = len(checked.shared.starts)
        checked.shared.see(federation)
        warm = federation.warm_work * took.example if len(checked.shared.starts) > starts else 0.0  # on one core
        checked.bill.minutes += (took.round * federation.rounds + warm) / 60
        for attack in attacks.values():
            trains = {(networks, federation.seed, name): rounds for name, rounds in attack.trains(federation).items()}
            checked.shared.ask(trains)
            sampled = samples.of(attack, federation)
            checked.bill.besides += sampled.seconds / 60 if sampled else 0.0
            for work, rounds in trains.items() if sampled is None or sampled.besides else ():
                asked[work] = max(asked.get(work, 0.0), rounds * took.round / 60)
            most = steps.searched(attack, federation, networks) / cores() / 60
            checked.bill.most += most
            checked.bill.searches += attack.usual(federation) * most
        checked.bill.memory_mb = max(checked.bill.memory_mb, took.memory_mb)
        checked.bill.disk_mb += disk_of(federation, attacks.values())
    checked.problems += said_once(wrong, len(study.cells))
    checked.notes += said_once(chosen, len(seen), "settings")
    checked.warnings += [f"{text} ({_few(list(dict.fromkeys(names)))})" for text, names in statistics.items()]
    checked.bill.worlds = sum(asked.values())
    checked.bill.minutes += checked.bill.attacks
    return checked


def _granted(federation: Federation) -> tuple[Federation, list[LeaklineError | ValueError]]:
    """The federation with what its defences ask for granted, or as it is, with why that cannot be."""
    try:
        return federation.granted, []
    except (LeaklineError, ValueError) as error:
        return federation, [error]


def _note_wire(wire: dict[str, dict[str, int]], scenario: str, cell: Cell, federation: Federation) -> None:
    """Note what travels, under the defence's name too where it has a network of its own."""
    frozen = sum(value.numel() for _, value in constants(federation.bench().model))
    size = federation.wire.size
    where = f"{scenario} {cell.labels.get('defence', '')}".strip() if scenario in wire else scenario
    wire[where] = {"values": size, "all": federation.layout.size + frozen, "bytes": 4 * size}


def _chosen(choice: Choice | None) -> list[str]:
    """Which attacks were chosen for a cell, which were left out and why."""
    if choice is None:
        return []
    lines = [f"the strongest attacks, {choice.minutes:.1f} nominal minutes for each seed"]
    lines += [f"takes {text}" for text in choice.taken]
    return lines + [f"leaves out {text}" for text in choice.left]


def _partition(federation: Federation) -> list[list[Any]]:
    """Who holds what, and of how many patients (or recordings) where that is known."""
    rows = data_package.table(federation.task)
    known = any(row.groups is not None for row in rows)
    head = ["", *federation.task.classes, "train", "test", *([f"{federation.task.group}s"] if known else [])]
    return [head, *([r.name, *r.counts, r.train, r.test, *([r.groups or "not known"] if known else [])] for r in rows)]


def _look_at_model(federation: Federation) -> list[str]:
    bench = federation.bench()
    x = federation.task.clients[0].train.inputs(slice(0, 2))
    layers: dict[tuple[str, str, str], list[str]] = {}
    for f in preflight(bench.model, tuple(x.shape[1:]), len(federation.task.classes), federation.task.kind):
        if not f.layer_name.endswith("num_batches_tracked"):  # BatchNorm's own counter: nothing to do about it
            layers.setdefault((f.kind, f.message, f.fix), []).append(f.layer_name)
    return [f"{_few(names)} ({kind}): {message}; {fix}" for (kind, message, fix), names in layers.items()]


def _look_at_statistics(federation: Federation) -> list[str]:
    """What becomes of the statistics that BatchNorm keeps, under this federation's defences."""
    if not federation.layout.buffers:
        return []
    treatment = federation.stack.treatment
    if not federation.wire.buffers:
        return ["BatchNorm's running statistics stay at the clients"]
    if not treatment.buffers:
        return ["BatchNorm's running statistics are kept back: the server's stay as they began"]
    if any(act.buffers and act.noise for act in treatment.updates):
        return ["BatchNorm's running statistics leave the clients under the same noise as the weights"]
    return ["BatchNorm's running statistics reach the server without noise"]


def _look_at_classes(federation: Federation) -> list[str]:
    """Whether clients lack a class altogether (an odd site, or a folder with another name), or a test set is skewed."""
    rows = [row for row in data_package.table(federation.task) if row.train]
    lacking = [row.name for row in rows if row.counts and min(row.counts) == 0]
    remarks = [f"{_few(lacking)}: no example of some class"] if lacking and len(lacking) < len(rows) else []
    if federation.task.kind != "classification":
        return remarks
    blind = [b for part in _judged(federation) if (b := baseline_of(federation, part)) is not None]
    right = sum(b.figures["accuracy"] for b in blind) / max(len(blind), 1)
    if right >= 1 / len(federation.task.classes) + SKEWED:
        answer = blind[0].answer if len({b.answer for b in blind}) == 1 else NOT_ALIKE
        remarks.append(f"{answer} scores accuracy {right:.2f} on the test data: read balanced accuracy beside it")
    return remarks


def _judged(federation: Federation) -> list[Data]:
    """The test data that the federation's figures will be taken on."""
    judges = set(() if federation.judging.evaluate == "both" else federation.judges)
    parts = [c.test for c in federation.task.clients if c.name in judges] if judges else [federation.task.test]
    return [part for part in parts if part is not None and len(part)]


def _few(names: list[str]) -> str:
    """The first names, and how many there are besides."""
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _look_at_effort(attacks: Mapping[str, Attack], federation: Federation) -> list[str]:
    """Which attacks are given less work than they are known to need."""
    efforts = {name: attack.effort(federation) for name, attack in attacks.items()}
    short = {name: too_little(effort.about) for name, effort in efforts.items() if effort is not None}
    return [f"{name} is {text}: if it fails, that will say nothing" for name, text in short.items() if text]


def _look_at_delta(card: Card, federation: Federation) -> list[str]:
    """Whether a delta allows that a promise fails outright for one of those it is made to."""
    task = federation.task
    records = sum(len(client.train) for client in task.clients)
    units = {Unit.RECORD: records, Unit.PATIENT: task.groups, Unit.CLIENT: len(task.clients)}
    found = []
    for promise in card.promises:
        n = units.get(Unit(promise.unit)) if promise.epsilon is not None else None
        if n and promise.delta and promise.delta >= 1 / n:
            found.append(
                f"delta = {promise.delta:g} is not below 1 / {n} ({n} {promise.unit}s): the promise of "
                f"{promise.defence} might fail outright for one of them; take delta well below it"
            )
    return found


def _look_at_masks(federation: Federation) -> list[str]:
    """What a model that marks nothing would score: two empty masks agree, so Dice counts every empty one as 1."""
    if federation.task.kind != "segmentation":
        return []
    shares = [float((part.labels() == 0).mean()) for part in _judged(federation)]
    empty = sum(shares) / max(len(shares), 1)
    if empty < EMPTY:
        return []
    return [f"{empty:.0%} of the test masks mark nothing: a model that marks nothing scores Dice {empty:.2f}"]
