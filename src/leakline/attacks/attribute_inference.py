"""Attribute inference: what do updates tell about the people who send them? Paper 003, Sec. 3.3."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from leakline.attacks.base import Attack, Challenge, Lab, Sample
from leakline.attacks.update_features import Feature, Row, along, over_rounds, raw, rows_of
from leakline.attacks.user_samples import samples_of
from leakline.attacks.users import (
    LEARNERS,
    Guess,
    Learner,
    Refit,
    folds_over,
    output_of,
    ridge,
    test_share,
    user_readings,
)
from leakline.data.plant import signals_of, stronger
from leakline.errors import StudyError
from leakline.federation import Federation, initial_weights, keep_none
from leakline.messages import Keep, Memory, Update, problem_with
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.settings import setting
from leakline.views import ServerView, need_single_updates
from leakline.weights import Weights

Looked = Mapping[Feature, Mapping[str, Row]]
"""The users' rows by feature, of one look at updates."""


STRONGER = 1.2
"""The factor that a simulating server tries: of the direction it gives only the length depends on it, nearly."""


@dataclass(frozen=True)
class KnownUsers:
    """What the server knows besides its view: the trait of some users, whom to guess, whom it aggregated when.

    ``aggregated[k]`` are the users whose models went into what was sent in probe k; a watching server has one look.
    """

    known: Mapping[str, bool]
    asked: tuple[str, ...]
    aggregated: tuple[frozenset[str], ...]
    seed: int
    changed: Mapping[str, Row] = field(default_factory=dict)
    """How the trait would change the updates of those it knows, where the server simulates."""


@dataclass(frozen=True)
class TrueTraits:
    """What the examiner knows of one fold."""

    labels: Mapping[str, bool]
    repeat: int
    epochs: int


@dataclass(frozen=True)
class AttributeInference(Attack):
    """A trait of each user, guessed by the server from one update, trained on users whose trait it knows (paper 003).

    ``trait`` is a fact about clients that only the examiner reads; ``positive`` the value to find (default: True, or
    the last of two values in order: woman). The server knows it for the users of all folds but one, and guesses the
    rest; ``repeats`` times ``folds`` folds over users.

    ``server``:
      passive  looks at one ordinary round after the last;
      active   lets everybody train, sends the mean of the *known* positive users' models instead of everybody's,
               and looks at the updates that come back from data not yet trained on (each client's test part);
      paper    the same, but the mean is over all positive users, as the paper's text has it. That presumes the
               answer: whom to aggregate is the trait of those to be guessed, and an update may show whether its
               sender's own model was in. Run it to regenerate the paper, not to measure a leak;
      watching kept every update of every round: a user's row is the mean over rounds of what its update differs
               by from everybody's mean, in units of that round's spread. What lasts adds up, and what one round's order
               of batches or noise did to it averages out. Costs no exchange beyond the run.
      simulating looks at one ordinary round like a passive one, but knows what the trait does (signals of the class
               ``of`` grow stronger, as `plant` has it) and holds the data of the users whose trait it knows. It works
               out how their updates would change, and looks along that direction, whitened by the spread of all users'
               updates. A yardstick for planted traits: what is in the updates for who need not find out where. Of a
               real trait nobody knows so much.
    Whoever was aggregated may answer unlike others, whatever the trait. So "active" aggregates half of
    the known positive users at a time and learns from the users that were left out; two probes a fold, averaged.

    ``start``: "final" attacks the finished federation with the clients' personal layers as they are, "initial" a
    federation in its first round. ``epochs`` are the local epochs of the attacked exchanges (default: the plan's);
    several values give the paper's Fig. 4. ``features`` x ``learners`` are tried one and all; "auc (best)" is the
    largest with the p-value of a largest. The paper: sorted neurons, a forest of 1000 trees of depth 10, 10 x 5 folds.
    """

    trait: str
    positive: str | bool | int | None = None
    server: Literal["active", "passive", "paper", "watching", "simulating"] = "active"
    start: Literal["final", "initial"] = "final"
    features: tuple[Feature, ...] = ("raw", "sorted", "moments")
    learners: tuple[Learner, ...] = ("forest", "logistic")
    folds: int = 5
    repeats: int = 10
    trees: int = 1000
    epochs: tuple[int, ...] = ()
    of: str = setting("", quiet=True)
    seat: ClassVar[Seat] = Seat.SERVER

    def __post_init__(self) -> None:
        if self.folds < 2 or self.repeats < 1 or self.trees < 1:
            raise ValueError(f"folds of 2, repeats and trees of 1 at least: {self.folds}, {self.repeats}, {self.trees}")
        if not self.features or not self.learners or any(e < 1 for e in self.epochs):
            raise ValueError(f"a feature, a learner, and epochs of 1 at least are needed: {self}")
        if self.server == "watching" and (self.epochs or self.start != "final"):
            raise ValueError("a watching server takes rounds as they were: leave epochs and start out")
        if (self.server == "simulating") != bool(self.of) or (self.of and self.features != ("raw",)):
            raise ValueError('a simulating server, and no other, needs `of`, a class, and features = ["raw"]')

    # the examiner's half

    def trains(self, federation: Federation) -> dict[str, float]:
        """Rounds for the attacked exchanges: an ordinary one, and the server's probes on the clients' test part."""
        if self.server == "watching":
            return {}
        probes = {"passive": 0, "simulating": 0, "paper": 1, "active": 2 * self.folds * self.repeats}[self.server]
        rounds = sum(e / federation.plan.epochs for e in self.epochs or (federation.plan.epochs,))
        name = f"attribute/{self}/{federation.strategy}/{federation.defences}"
        ordinary = 2 if self.server == "simulating" else 1
        return {name: rounds * (ordinary + probes * test_share(federation))}

    def samples(self, federation: Federation) -> list[Sample]:
        """Rows and learners of one fold; a server that makes no probes of its own looks once at what came back."""
        epochs, questions = len(self.epochs) or 1, self.folds * self.repeats
        fits = epochs * questions * (2 if self.server == "active" else 1)
        looks = {"active": fits, "watching": federation.rounds}.get(self.server, epochs)
        return samples_of(federation, self.features, self.learners, self.trees, self.folds, fits, looks)

    def wants(self, federation: Federation) -> Keep:
        """All updates, for a server that watches."""
        return (lambda index, client: True) if self.server == "watching" else keep_none

    def check(self, federation: Federation) -> None:
        """Refuse, before training, a trait that cannot be asked for."""
        need_single_updates(federation, "attribute-inference")
        labels = self.labels(federation)
        for value, word in ((True, "with"), (False, "without")):
            count = sum(label == value for label in labels.values())
            if count < self.folds:
                raise _wrong(
                    f"{count} of {len(labels)} clients are {word} {self.trait}, and {self.folds} folds need as many",
                    "lower folds, or use more clients",
                )
        positive = sum(labels.values())
        if self.server == "active" and positive - -(-positive // self.folds) < 2:
            raise _wrong(
                f"{positive} clients have the trait {self.trait}: of those that are known, half must be left out",
                "use more clients, or a passive server",
            )
        if self.server == "simulating":
            signals_of(federation.task, self.of)
        if self.server in ("active", "paper"):
            without = [c.name for c in federation.task.clients if c.test is None or not len(c.test)]
            if without:
                raise _wrong(
                    f"{without[0]} holds no data to be tuned on that it has not trained on", "set client_test in [data]"
                )

    def labels(self, federation: Federation) -> dict[str, bool]:
        """Who has the trait, by client."""
        found = {c.name: c.traits.get(self.trait) for c in federation.task.clients}
        lacking = [name for name, value in found.items() if value is None]
        if lacking:
            traits = sorted({t for c in federation.task.clients for t in c.traits})
            raise _wrong(
                f"client {lacking[0]} has no trait {self.trait!r}",
                f"the traits are: {', '.join(traits) or 'none (partition by-column)'}",
            )
        values = sorted({str(v) for v in found.values()})
        if len(values) < 2:
            raise _wrong(f"all clients have {self.trait} = {values[0]}: there is nothing to tell", "use another trait")
        if self.positive is None and len(values) > 2:
            raise _wrong(f"{self.trait} has {len(values)} values", f"set positive to one of: {', '.join(values[:6])}")
        wanted = values[-1] if self.positive is None else str(self.positive)
        if wanted not in values:
            raise _wrong(f"no client has {self.trait} = {wanted}", f"one of: {', '.join(values[:6])}")
        return {name: str(value) == wanted for name, value in found.items()}

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One question per fold, repeat and number of epochs."""
        self.check(lab.federation)
        labels = self.labels(lab.federation)
        for epochs in self.epochs or (lab.federation.plan.epochs,):
            scene = _Watched(lab) if self.server == "watching" else _Scene(lab, self, epochs)
            for repeat in range(self.repeats):
                rng = lab.stream(f"attribute-inference/{self.trait}/{repeat}").numpy()
                for number, asked in enumerate(folds_over(labels, self.folds, rng)):
                    known = {name: label for name, label in labels.items() if name not in asked}
                    view, aggregated = scene.look(labels if self.server == "paper" else known, rng)
                    changed = {n: row for n, row in scene.changed.items() if n in known}
                    hints = KnownUsers(known, asked, aggregated, self.folds * repeat + number, changed)
                    yield Challenge(view, hints, TrueTraits({name: labels[name] for name in asked}, repeat, epochs))

    # the attacker's half

    def guess(self, view: ServerView, hints: KnownUsers) -> Guess:
        """A score for each user asked for, by feature and learner; averaged over the probes seen."""
        return self._said(self._looks(view), hints)

    def guesses(self, asked: Iterable[tuple[ServerView, KnownUsers]], workers: int) -> list[Guess]:
        """The same, with the rows of a view that several questions share made once."""
        found: list[Guess] = []
        last, looks = None, list[Looked]()
        for view, hints in asked:
            looks = looks if view is last else self._looks(view)
            last = view
            found.append(self._said(looks, hints))
        return found

    def _looks(self, view: ServerView) -> list[Looked]:
        """Of each probe, or of all rounds that a server watched, the users' rows by feature."""
        output = output_of(view.bench.initial)
        seen: list[Looked] = [
            {feature: rows_of(feature, sent, updates, output) for feature in self.features}
            for sent, updates in zip(view.sent, view.updates, strict=True)
        ]
        if self.server != "watching":
            return seen
        return [{feature: over_rounds([rows[feature] for rows in seen]) for feature in self.features}]

    def _said(self, looks: Sequence[Looked], hints: KnownUsers) -> Guess:
        total: dict[str, np.ndarray] = {}
        refits: dict[str, list[Refit]] = {feature: [] for feature in self.features}
        for seen, used in zip(looks, hints.aggregated, strict=True):
            # With everybody aggregated (the paper's way) there is nobody left out to learn from.
            learn = [n for n in hints.known if n not in used or self.server == "paper"]
            y = np.array([hints.known[name] for name in learn])
            for feature, rows in seen.items():
                if hints.changed:
                    rows = along(rows, np.mean(list(hints.changed.values()), axis=0))
                x, asked = (np.stack([rows[name] for name in names]) for names in (learn, hints.asked))
                refits[feature].append(Refit(hints.asked, tuple(learn), ridge(x, asked)))
                for learner in self.learners:
                    scores = LEARNERS[learner](x, y, asked, hints.seed, self.trees)
                    name = f"{feature}+{learner}"
                    total[name] = total.get(name, 0.0) + scores / len(looks)
        by_way = {way: dict(zip(hints.asked, values.tolist(), strict=True)) for way, values in total.items()}
        return Guess(by_way, refits)

    # the comparison

    def measure(self, guesses: Sequence[Guess], secrets: Sequence[TrueTraits]) -> list[Reading]:
        """Statistics over users for every number of epochs; each user's own share of right guesses (Fig. 5)."""
        found: list[Reading] = []
        for epochs in dict.fromkeys(s.epochs for s in secrets):
            parts = [(g, s) for g, s in zip(guesses, secrets, strict=True) if s.epochs == epochs]
            labels = {name: label for _, s in parts for name, label in s.labels.items()}
            users = list(labels)
            truth = np.array([[labels[u] for u in users]])
            scores: dict[str, np.ndarray] = {}
            for name in parts[0][0].scores:
                table = np.full((self.repeats, len(users)), np.nan)
                for g, s in parts:
                    for user, value in g.scores[name].items():
                        table[s.repeat, users.index(user)] = value
                scores[name] = table
            rng = np.random.default_rng(epochs)
            means = {name: table.mean(0, keepdims=True) for name, table in scores.items()}
            note = "the server knew whom to guess" if self.server == "paper" else f"{self.server} server"
            refits: dict[str, list[tuple[int, Refit]]] = {
                f: [(0, rule) for g, _ in parts for rule in g.refits[f]] for f in self.features
            }
            found += user_readings(means, truth, users, refits, rng, note, {"epochs": epochs})
            shown = "sorted+forest" if "sorted+forest" in scores else next(iter(scores))
            right = ((scores[shown] >= 0.5) == truth).mean(0)
            found += [
                Reading("found-out", float(v), n=self.repeats, client=u, about={"rule": shown, "epochs": epochs})
                for u, v in zip(users, right, strict=True)
            ]
        return found


class _Scene:
    """The attacked exchanges of one federation, the examiner's doing: what was sent and what came back."""

    def __init__(self, lab: Lab, attack: AttributeInference, epochs: int) -> None:
        plan = replace(lab.federation.plan, epochs=epochs)
        self.lab, self.attack = lab, attack
        self.world = replace(lab.federation, plan=plan)
        clients = tuple(replace(c, train=c.test) if c.test is not None else c for c in lab.federation.task.clients)
        self.rest = replace(self.world, task=replace(self.world.task, clients=clients))
        final = attack.start == "final"
        self.start = lab.final_weights() if final else initial_weights(lab.federation)
        self.memories: dict[str, Memory] = lab.memories() if final else {}
        before = copy.deepcopy(self.memories)
        self.ordinary = lab.probe(self.start, 0, federation=self.world, memories=self.memories)
        self.changed: dict[str, Row] = self._changed(before) if attack.server == "simulating" else {}
        self.probes = 1
        self.same: ServerView | None = None
        """What is seen whoever is asked about, where that is so: rows are then made once."""

    def look(
        self, labels: Mapping[str, bool], rng: np.random.Generator
    ) -> tuple[ServerView, tuple[frozenset[str], ...]]:
        """The server's view of one fold."""
        if self.attack.server in ("passive", "simulating"):
            self.same = self.same or self._view([(self.start, self.ordinary)])
            return self.same, (frozenset(),)
        positive = [name for name, label in labels.items() if label]
        if self.attack.server == "paper":
            self.same = self.same or self._view([self._tuned(frozenset(positive))])
            return self.same, (frozenset(positive),)
        mixed = [positive[i] for i in rng.permutation(len(positive))]
        halves = (frozenset(mixed[::2]), frozenset(mixed[1::2]))
        return self._view([self._tuned(half) for half in halves]), halves

    def _changed(self, memories: dict[str, Memory]) -> dict[str, Row]:
        """What each client's update differs by where it moves more strongly, the same batches drawn."""
        world = replace(self.world, task=stronger(self.world.task, self.attack.of, STRONGER))
        moved = self.lab.probe(self.start, 0, federation=world, memories=memories)
        as_it_is = {u.client: u.delta for u in self.ordinary}
        return {u.client: raw(self.start, u.delta - as_it_is[u.client], "") for u in moved}

    def _tuned(self, members: frozenset[str]) -> tuple[Weights, tuple[Update, ...]]:
        chosen = (u for u in self.ordinary if u.client in members and problem_with(u, self.start) is None)
        sent = self.start + self.lab.federation.strategy.combine(chosen)
        answers = self.lab.probe(sent, self.probes, federation=self.rest, memories=copy.deepcopy(self.memories))
        self.probes += 1
        return sent, answers

    def _view(self, seen: Sequence[tuple[Weights, tuple[Update, ...]]]) -> ServerView:
        federation = self.lab.federation
        return ServerView(
            self.start, federation.bench, federation.objective.per_example_loss, (self.start,), federation.local_plan,
            tuple(sent for sent, _ in seen), tuple(updates for _, updates in seen),
        )  # fmt: skip


class _Watched:
    """All rounds of one federation as its server saw them."""

    changed: ClassVar[Mapping[str, Row]] = {}

    def __init__(self, lab: Lab) -> None:
        kept = [lab.kept(index) for index in range(len(lab.cohorts()))]
        seen = [(sent, tuple(updates)) for sent, updates in (found for found in kept if found is not None)]
        last, federation = lab.final_weights(), lab.federation
        self.view = ServerView(
            last, federation.bench, federation.objective.per_example_loss, (last,), federation.local_plan,
            tuple(sent for sent, _ in seen), tuple(updates for _, updates in seen),
        )  # fmt: skip

    def look(
        self, labels: Mapping[str, bool], rng: np.random.Generator
    ) -> tuple[ServerView, tuple[frozenset[str], ...]]:
        """The same view for every fold; nobody was chosen by a trait."""
        return self.view, (frozenset(),)


def _wrong(what: str, fix: str) -> StudyError:
    return StudyError(what, "attribute-inference", fix)
