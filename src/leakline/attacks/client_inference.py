"""Client inference: did this hospital take part? Paper 000's statistic, and the attack with a world to compare with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from leakline.attacks.base import Attack, Challenge, Lab, Sample
from leakline.attacks.presence import Calibration, Scores
from leakline.attacks.verdicts import over_worlds, yes_or_no
from leakline.attacks.worlds import Absent, Initial, World, bare, pairs, replayable, without
from leakline.data.base import Client, Data
from leakline.errors import LeaklineError, StudyError
from leakline.federation import Federation, keep_none
from leakline.leakage.guessing import FEWEST_TO_TELL
from leakline.messages import Keep
from leakline.privacy import Adjacency, Claim, Seat, Unit, account, replace_one
from leakline.randomness import Stream
from leakline.readings import Fact, Reading
from leakline.views import ClientView, client_view
from leakline.weights import Weights, write

Score = Literal["loss", "own", "fresh", "direction", "paper", "aggregated", "calibrated"]
Shadow = Literal["all", "inside", "disjoint", "population"]
DELTA = 1e-5


def difference(shadow_loss: float, aggregated_loss: float) -> float:
    """The statistic of paper 000, Sec. 7.4, in percent: 100 (l_shadow - l_aggregated) / l_shadow.

    The paper gives no formula; this one reproduces its Tables 9, 10 and D.13-16 to rounding. A model so wrecked that
    its loss on the shadow set is exactly 0 (one class, always right, for certain) has no such ratio: 1e-6 stands in.
    """
    return 100 * (shadow_loss - aggregated_loss) / max(shadow_loss, 1e-6)


@dataclass(frozen=True)
class ShadowData:
    """What the attacking client holds besides its view: data like the target's, its own, and the server's figure."""

    shadows: Mapping[str, Data]
    fresh: Data
    own: Data
    aggregated_loss: float
    worlds: Mapping[str, Calibration] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class PresenceScores:
    """The attacker's scores (higher: the target was there) by rule and shadow set, and the paper's figures likewise."""

    scores: Mapping[tuple[str, str], float]
    figures: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class TrueWorld:
    """What the examiner knows of one world."""

    present: bool
    pair: int
    ceiling: float | None
    test_loss: float = math.nan


@dataclass(frozen=True)
class ClientInference(Attack):
    """Did a client take part? Shadow data like the target's, scored in worlds with and without it (paper 000).

    ``target`` and ``attacker`` are names of clients (default: the last and the first). What the attacker holds is
    stated (``shadows``): all of the target's training data ("all"), a share ``shadow`` of them ("inside"), as many of
    its examples that were never trained on ("disjoint"; the target's own test part), or nothing of the target's, only
    the server's test data ("population"). It looks after ``rounds`` rounds. ``worlds`` pairs of
    federations are trained, seed by seed, which differ in the target alone: ``absent = "removed"`` leaves it out,
    "replaced" puts the server's validation data in its place so that the number of clients stays.

    The attacker knows the initial model, which a federation publishes before anybody trains: with ``initial`` =
    "published" the worlds of all pairs start from it, and shuffles, samples and noise differ from pair to pair. "each"
    draws an initial model for each pair, as if the attacker did not know it: a handicap that hides nearly everything.

    Scores, each higher when the target seems to be there; L is the published model's mean loss:
      loss       -L(shadow)
      own        L(attacker's own test data) - L(shadow)
      fresh      L(unseen data of the target) - L(shadow): memory of the shadow records themselves
      direction  cosine of the published change with the shadow's gradient less the attacker's own
      paper      -difference%, the paper's statistic
      aggregated the figure that the server sends round with the model, without noise: the part of the paper's statistic
                 that no shadow data are needed for, and no noise on the model covers
      calibrated the likelihood ratio of each record's score in worlds with and without the target, all other pairs of
                 worlds as shadows (LiRA, Carlini et al. 2022), mean over records and over the models of all rounds

    `calibrated` has worlds in which everybody holds what they really hold, the target all its records: the attacker of
    a promise's game, whatever records it scores, and an upper bound for one who must make data up. It sees the model's
    shift rather than memory of records. Near chance its AUC leans below 0.5 and its interval is too narrow.

    Departs from the paper, which scores one world, with the target in it, and so cannot tell a protected federation
    from a badly trained one. The ceiling in the notes is the largest TPR - FPR that the formal promise allows to
    any attacker (2 Phi(mu/2) - 1). With "removed" that is one who knows the number of clients, and only a promise for
    add-remove says anything; with "replaced" the promise is read for replace-one.
    """

    target: str = ""
    attacker: str = ""
    shadow: float = 0.1
    shadows: tuple[Shadow, ...] = ("inside", "disjoint")
    scores: tuple[Score, ...] = ("loss", "own", "fresh", "paper", "calibrated")
    worlds: int = 50
    rounds: int = 1
    absent: Absent = "removed"
    initial: Initial = "published"
    seat: ClassVar[Seat] = Seat.CLIENT

    def __post_init__(self) -> None:
        if not 0 < self.shadow < 1:
            raise ValueError(f"shadow must lie between 0 and 1: {self.shadow}")
        if self.worlds < 2 or self.rounds < 1:
            raise ValueError(f"worlds must be at least 2 and rounds at least 1: {self.worlds}, {self.rounds}")
        if not self.shadows or not self.scores:
            raise ValueError(f"at least one shadow and one score are needed: {self.shadows}, {self.scores}")

    # the examiner's half

    def trains(self, federation: Federation) -> dict[str, float]:
        """Rounds for the paired worlds: one per seed where first updates decide everything, else two histories.

        Where each pair has an initial model of its own, so has it a warm start of its own.
        """
        inside = replace(federation, rounds=self.rounds)
        examples = federation.local_plan.epochs * sum(len(c.train) for c in federation.task.clients)
        starts = self.worlds * federation.warm_work / examples if self.initial == "each" else 0.0
        if replayable(inside):
            strategy = bare(inside).strategy
            rounds = {f"worlds/{strategy}": self.worlds + starts}
            if self.absent == "replaced":
                rounds[f"stand-ins/{strategy}"] = self.worlds / len(federation.task.clients) + starts
            return rounds
        return {f"worlds/{federation.strategy}/{federation.defences}": 2.0 * self.worlds * self.rounds + starts}

    def samples(self, federation: Federation) -> list[Sample]:
        """The looks at one world's model; those of `calibrated`, at all models, are not in it."""
        target, attacker = self._parties(federation)
        task, bench = federation.task, federation.bench()
        shadows, fresh, _ = self._shadow_data(target, task.test, federation.seed)
        sets = [attacker.test, fresh, *shadows.values(), *(c.test for c in task.clients), task.test]
        looked_at = [data for data in sets if data is not None]

        def do(workers: int) -> None:
            for data in looked_at:
                bench.outputs(bench.initial, data)

        return [Sample(do, 1 / (2 * self.worlds), besides=True)]

    def wants(self, federation: Federation) -> Keep:
        """With several rounds, what each sent: the first history with the target in it may be the cell's own."""
        first = federation.task.clients[0].name
        return keep_none if self.rounds == 1 else lambda index, client: index < self.rounds and client == first

    def check(self, federation: Federation) -> None:
        """Refuse, before training, what cannot be asked of this federation."""
        target, attacker = self._parties(federation)
        if federation.cohort.sampling != "full":
            raise _wrong("clients are sampled: the target may be out of its own world", 'set sampling = "full"')
        if federation.wire != federation.layout:
            raise _wrong("some layers stay at the clients: nobody publishes a whole model", "attack another defence")
        size = self._size(target)
        if size < 1:
            raise _wrong(
                f"shadow = {self.shadow:g} of the {len(target.train)} examples of {target.name} leaves no data",
                "raise shadow",
            )
        if "population" in self.shadows and federation.task.test is None:
            raise _wrong(
                "there are no data of the population's: the server holds no test data", "set server_test in [data]"
            )
        needed = size + 1 if "disjoint" in self.shadows else 1
        held = 0 if target.test is None else len(target.test)
        if held < needed:
            raise _wrong(
                f"{target.name} holds {held} examples that nobody trains on; the shadow set and data to compare it "
                f"with need {needed}",
                "raise client_test in [data], or lower shadow",
            )
        if attacker.test is None:
            raise _wrong(f"the attacker {attacker.name} holds no test data of its own", "set client_test in [data]")
        try:
            outside = without(federation, target.name, self.absent)
            outside.stack.check(outside)
        except LeaklineError as error:
            raise _wrong(f"the world without {target.name} cannot be: {error.what}", error.fix) from error

    def remarks(self, federation: Federation) -> tuple[str, ...]:
        """Warn of so few worlds that not even an attacker who is always right could be told from chance."""
        if self.worlds >= FEWEST_TO_TELL:
            return ()
        return (
            f"client-inference: {self.worlds} pairs of worlds can never tell an attack from blind guessing, not even "
            f"one that is always right; set worlds to {FEWEST_TO_TELL} or more",
        )

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One question per world: was the target there?"""
        self.check(lab.federation)
        target, attacker = self._parties(lab.federation)
        assert attacker.test is not None
        ceiling = self._ceiling(replace(lab.federation, rounds=self.rounds))
        worlds = list(pairs(lab, target.name, self.worlds, self.absent, self.rounds, self.initial))
        scores = Scores.of(worlds, target, lab.federation.task.test) if "calibrated" in self.scores else None
        for number, world in enumerate(worlds):
            view = client_view(world.federation, world.published)
            shadows, fresh, rows = self._shadow_data(target, lab.federation.task.test, world.federation.seed)
            others = {} if scores is None else {name: scores.of_world(number, at) for name, at in rows.items()}
            hints = ShadowData(shadows, fresh, attacker.test, _aggregated(world, view), others)
            test = world.federation.task.test
            loss = _mean(view, test) if test is not None and world.present else math.nan
            yield Challenge(view, hints, TrueWorld(world.present, world.pair, ceiling, loss))

    def _parties(self, federation: Federation) -> tuple[Client, Client]:
        names = [c.name for c in federation.task.clients]
        if len(names) < 2:
            raise _wrong("there is one client: nobody to infer and nobody to attack", "use two clients or more")
        target = self.target or names[-1]
        attacker = self.attacker or next(n for n in names if n != target)
        for role, name in (("target", target), ("attacker", attacker)):
            if name not in names:
                raise _wrong(f"the {role} {name!r} is not in the federation", f"one of: {', '.join(names[:8])}")
        if target == attacker:
            raise _wrong(f"{target} cannot attack itself", "name two different clients")
        return federation.clients[target], federation.clients[attacker]

    def _size(self, target: Client) -> int:
        return round(self.shadow * len(target.train))

    def _shadow_data(
        self, target: Client, test: Data | None, seed: int
    ) -> tuple[dict[str, Data], Data, dict[str, np.ndarray]]:
        """Shadow sets drawn anew in every pair of worlds, the same in both; the target's unseen data; the sets' places.

        Places count through the target's training data, its test part and the population, one after another.
        """
        assert target.test is not None
        rng = Stream(seed, -2, "examiner", "client-inference/shadow").numpy()
        size, train, held = self._size(target), len(target.train), len(target.test)
        inside = rng.choice(train, size, replace=False)
        order = rng.permutation(held)
        cut = size if "disjoint" in self.shadows else 0
        found = {"all": np.arange(train), "inside": inside, "disjoint": train + order[:cut]}
        sets = {"all": target.train, "inside": target.train.take(inside), "disjoint": target.test.take(order[:cut])}
        if test is not None:
            found["population"], sets["population"] = train + held + np.arange(len(test)), test
        named = self.shadows
        return {n: sets[n] for n in named}, target.test.take(order[cut:]), {n: found[n] for n in named}

    def _ceiling(self, federation: Federation) -> float | None:
        """What the promise allows in this game: one that does not speak of it has no ceiling here."""
        claims = [c for c in federation.claims().values() if isinstance(c, Claim) and c.unit == Unit.CLIENT]
        if self.absent == "replaced":
            claims = [replace_one(c) for c in claims]
        else:
            claims = [c for c in claims if c.adjacency is Adjacency.ADD_REMOVE]
        return min((account(c, DELTA).advantage for c in claims), default=None)

    # the attacker's half

    def guess(self, view: ClientView, hints: ShadowData) -> PresenceScores:
        """Score one world from what a participant sees and holds."""
        own, fresh = _mean(view, hints.own), _mean(view, hints.fresh)
        scores: dict[tuple[str, str], float] = {}
        figures = {("aggregated-loss", ""): hints.aggregated_loss}
        for where, data in hints.shadows.items():
            loss = _mean(view, data)
            figures["shadow-loss", where] = loss
            figures["difference-percent", where] = difference(loss, hints.aggregated_loss)
            found = {"loss": -loss, "own": own - loss, "fresh": fresh - loss}
            found["paper"] = -figures["difference-percent", where]
            if where in hints.worlds:
                found["calibrated"] = hints.worlds[where].ratio()
            if "direction" in self.scores:
                found["direction"] = _direction(view, data, hints.own)
            scores |= {(name, where): found[name] for name in self.scores if name != "aggregated"}
        if "aggregated" in self.scores:
            scores["aggregated", ""] = hints.aggregated_loss
        return PresenceScores(scores, figures)

    # the comparison

    def measure(self, guesses: Sequence[PresenceScores], secrets: Sequence[TrueWorld]) -> list[Reading]:
        """The paper's figures in both kinds of world, then AUC, balanced accuracy and TPR of every score."""
        present = np.array([s.present for s in secrets])
        found = []
        for measure, shadow in guesses[0].figures:
            values = np.array([g.figures[measure, shadow] for g in guesses])
            about = {"shadow": shadow} if shadow else {}
            for world, there in (("present", present), ("absent", ~present)):
                found.append(over_worlds(measure, values[there].tolist(), {**about, "world": world}))
        found.append(over_worlds("test-loss", [s.test_loss for s in secrets if s.present], {}))
        found = [reading for reading in found if reading.n]
        folds = np.array([s.pair for s in secrets]) % 2
        most = secrets[0].ceiling
        note = "no formal ceiling" if most is None else f"formal ceiling of TPR - FPR {most:.4g}"
        for rule, shadow in guesses[0].scores:
            scores = np.array([g.scores[rule, shadow] for g in guesses])
            told: dict[str, Fact] = {"rule": rule}
            told |= {"shadow": shadow} if shadow else {}
            told |= {} if most is None else {"ceiling": most}
            found += yes_or_no(told, scores, present, folds, note)
        return found


def _wrong(what: str, fix: str) -> StudyError:
    return StudyError(what, "client-inference", fix)


def _mean(view: ClientView, data: Data) -> float:
    return float(view.losses(data).double().mean())


def _aggregated(world: World, view: ClientView) -> float:
    """What the server sends round: the participants' test losses, weighted by examples as Flower does."""
    tests = [c.test for c in world.federation.task.clients if c.test is not None]
    return sum(_mean(view, t) * len(t) for t in tests) / sum(len(t) for t in tests)


def _direction(view: ClientView, shadow: Data, own: Data) -> float:
    """Cosine of the published change with the descent direction of the shadow loss, less the attacker's own."""
    start = view.published[0]
    change = view.weights.vector - start.vector
    wanted = _gradient(view, start, own) - _gradient(view, start, shadow)
    change = change[: len(wanted)]
    return float(torch.nn.functional.cosine_similarity(change.double(), wanted.double(), dim=0))


def _gradient(view: ClientView, weights: Weights, data: Data) -> torch.Tensor:
    model = view.bench.model
    write(model, weights)
    model.eval()
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in parameters]
    for start in range(0, len(data), 128):
        rows = slice(start, min(start + 128, len(data)))
        loss = view.bench.loss(model(view.bench.inputs(data, rows)), view.bench.targets(data, rows))
        for part, gradient in zip(total, torch.autograd.grad(loss, parameters), strict=True):
            part += gradient * ((rows.stop - rows.start) / len(data))
    return torch.cat([part.flatten() for part in total])
