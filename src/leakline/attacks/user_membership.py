"""Who took part, at the level of users: paper 003's membership inference from fine-tuned updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from leakline.attacks.attribute_inference import KnownUsers
from leakline.attacks.base import Attack, Challenge, Lab, Sample
from leakline.attacks.update_features import Feature, rows_of
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
from leakline.errors import StudyError
from leakline.federation import Federation, initial_weights
from leakline.messages import Memory, problem_with
from leakline.privacy import Seat
from leakline.readings import Reading
from leakline.views import ServerView, need_single_updates


@dataclass(frozen=True)
class TruePresence:
    """Who took part in one world, among those asked for in one fold."""

    present: Mapping[str, bool]
    world: int


@dataclass(frozen=True)
class UserMembership(Attack):
    """Did this user take part? Learnt by the server from updates that all users tune from one model (paper 003).

    In each of ``worlds`` worlds a random half of the users takes part in a first round with its training data; the
    mean of their models goes to everybody, and everybody tunes it on data not trained on (the test part) and sends
    the update. The server knows of the users of all folds but one whether they took part, and guesses the rest.

    The same question as client-inference (did a hospital take part), asked by the server about everybody at once and
    answered from updates instead of models. The paper's setting is odd: a server knows who took part, it sent the
    orders. Read it as what an update tells about the past of whoever sends it. A user that took part keeps the
    personal layers it trained, as it would.

    ``others``: what who did not take part holds of layers that never leave the clients. "fresh": the initial ones, as a
    newcomer. "trained": its own, trained on the same model and data as a participant's, with an update that nobody
    ever added to the mean. Taking part is then all that tells the two sides apart, and not whether private layers were
    trained. Without private layers both are the same.

    Users change sides between worlds, so that no trait of theirs can stand in for taking part. The paper draws one
    half (we assume); its classifier is the forest of 1000 trees of depth 10 on sorted neurons, 10 x 5 folds.
    """

    features: tuple[Feature, ...] = ("raw", "sorted", "moments")
    learners: tuple[Learner, ...] = ("forest", "logistic")
    folds: int = 5
    worlds: int = 10
    trees: int = 1000
    others: Literal["fresh", "trained"] = "fresh"
    seat: ClassVar[Seat] = Seat.SERVER

    def __post_init__(self) -> None:
        if self.folds < 2 or self.worlds < 1 or self.trees < 1:
            raise ValueError(f"folds of 2, worlds and trees of 1 at least: {self.folds}, {self.worlds}, {self.trees}")
        if not self.features or not self.learners:
            raise ValueError(f"a feature and a learner are needed: {self.features}, {self.learners}")
        if self.others not in ("fresh", "trained"):
            raise ValueError(f'others must be "fresh" or "trained": {self.others!r}')

    def check(self, federation: Federation) -> None:
        """Refuse, before training, too few users or users without data to tune on."""
        need_single_updates(federation, "user-membership")
        users = len(federation.task.clients)
        if users // 2 < self.folds:
            raise StudyError(
                f"half of {users} users is fewer than {self.folds} folds", "user-membership", "lower folds, or use more"
            )
        without = [c.name for c in federation.task.clients if c.test is None or not len(c.test)]
        if without:
            raise StudyError(
                f"{without[0]} holds no data to be tuned on that it has not trained on",
                "user-membership",
                "set client_test in [data]",
            )

    def trains(self, federation: Federation) -> dict[str, float]:
        """Rounds for the worlds: half of the users train, then all tune on their test part."""
        held = test_share(federation)
        first = 1.0 if self.others == "trained" else 0.5
        return {f"users/{federation.strategy}/{federation.defences}": self.worlds * (first + held)}

    def samples(self, federation: Federation) -> list[Sample]:
        """Rows and learners of one fold."""
        questions = self.worlds * self.folds
        return samples_of(federation, self.features, self.learners, self.trees, self.folds, questions, questions)

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One question per world and fold."""
        self.check(lab.federation)
        federation = lab.federation
        names = [c.name for c in federation.task.clients]
        clients = tuple(replace(c, train=c.test) if c.test is not None else c for c in federation.task.clients)
        rest = replace(federation, task=replace(federation.task, clients=clients))
        start = initial_weights(federation)
        for world in range(self.worlds):
            rng = lab.stream(f"user-membership/{world}").numpy()
            chosen = {names[i] for i in rng.permutation(len(names))[: len(names) // 2]}
            present = {name: name in chosen for name in names}
            memories: dict[str, Memory] = {}
            takers = [name for name in names if name in chosen]
            trained = lab.probe(start, 2 * world, clients=takers, memories=memories)
            sent = start + federation.strategy.combine(u for u in trained if problem_with(u, start) is None)
            if self.others == "trained":  # what they send is never used; what they keep is
                lab.probe(start, 2 * world, clients=[n for n in names if n not in chosen], memories=memories)
            updates = lab.probe(sent, 2 * world + 1, federation=rest, memories=memories)
            view = ServerView(
                sent, federation.bench, federation.objective.per_example_loss, (start, sent), federation.local_plan,
                (sent,), (updates,),
            )  # fmt: skip
            for number, asked in enumerate(folds_over(present, self.folds, rng)):
                known = {name: there for name, there in present.items() if name not in asked}
                hints = KnownUsers(known, asked, (frozenset(),), seed=self.folds * world + number)
                yield Challenge(view, hints, TruePresence({name: present[name] for name in asked}, world))

    def guess(self, view: ServerView, hints: KnownUsers) -> Guess:
        """A score for each user asked for, by feature and learner."""
        output = output_of(view.bench.initial)
        learn = list(hints.known)
        y = np.array([hints.known[name] for name in learn])
        found = {}
        refits: dict[str, list[Refit]] = {}
        for feature in self.features:
            rows = rows_of(feature, view.sent[0], view.updates[0], output)
            x, asked = (np.stack([rows[name] for name in names]) for names in (learn, hints.asked))
            refits[feature] = [Refit(hints.asked, tuple(learn), ridge(x, asked))]
            for learner in self.learners:
                scores = LEARNERS[learner](x, y, asked, hints.seed, self.trees)
                found[f"{feature}+{learner}"] = dict(zip(hints.asked, scores.tolist(), strict=True))
        return Guess(found, refits)

    def measure(self, guesses: Sequence[Guess], secrets: Sequence[TruePresence]) -> list[Reading]:
        """Statistics over users, averaged over worlds."""
        users = sorted({name for s in secrets for name in s.present})
        shape = (self.worlds, len(users))
        present, scores = np.zeros(shape, dtype=bool), {name: np.zeros(shape) for name in guesses[0].scores}
        for guess, secret in zip(guesses, secrets, strict=True):
            for user, there in secret.present.items():
                place = (secret.world, users.index(user))
                present[place] = there
                for name, own in guess.scores.items():
                    scores[name][place] = own[user]
        pairs = list(zip(guesses, secrets, strict=True))
        refits: dict[str, list[tuple[int, Refit]]] = {
            f: [(s.world, rule) for g, s in pairs for rule in g.refits[f]] for f in self.features
        }
        rng = np.random.default_rng(self.worlds)
        return user_readings(scores, present, users, refits, rng, f"{self.worlds} worlds")
