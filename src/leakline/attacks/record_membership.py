"""Was this record trained on? From each seat, with all that the seat sees, against shadow federations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from leakline.attacks.base import Artefact, Attack, Challenge, Effort, Lab
from leakline.attacks.learnt import On, learnt, looks_of, told_apart
from leakline.attacks.patients import People, patient_results
from leakline.attacks.regressed import regressed
from leakline.attacks.shadow_worlds import Asked, dealt, units_of
from leakline.attacks.tables import Look, history, looked_at
from leakline.attacks.verdicts import leaks
from leakline.attacks.worlds import Initial
from leakline.data.base import Client
from leakline.errors import StudyError
from leakline.federation import Federation, keep_none
from leakline.leakage.exposure import fewest_worlds
from leakline.leakage.guessing import auc, over_units, tpr_at_fprs
from leakline.leakage.likelihood import difference, expit, lira_offline, lira_online, rmia
from leakline.messages import Keep
from leakline.privacy import Seat
from leakline.randomness import Stream
from leakline.readings import Reading
from leakline.settings import setting
from leakline.utility import MENU as OBJECTIVES

Score = Literal["learnt", "difference", "lira-online", "lira-offline", "rmia", "loss", "fedmia", "regression"]
WITHOUT_SHADOWS = ("loss", "fedmia", "regression")
NEEDED = 16
"""Shadow federations with which the attack was shown to find members; with fewer it may fail for want of them."""
FEWEST_BESIDE = 8
"""Records of a client that are not asked about, for layers in the place of those that it keeps to itself."""
ALONE = 4
"""Steps of training that a gradient costs which is formed by itself and held against all others (4 to 5 measured)."""
REFERENCES = 8
"""Most other clients whose updates FedMIA compares a client's with."""


@dataclass(frozen=True)
class Seen:
    """What the seat sees of the federation attacked: the scores of every record under each model that it sees."""

    looks: np.ndarray
    last: np.ndarray
    others: np.ndarray
    spread: np.ndarray
    own: np.ndarray
    regressed: np.ndarray
    """Of each record, what a regression of the updates on all records' gradients says of it."""


@dataclass(frozen=True)
class Shadows:
    """What the attacker trained itself: the same looks at its shadow federations, who took part there, whose it is."""

    looks: np.ndarray
    last: np.ndarray
    coins: np.ndarray
    patient: np.ndarray


@dataclass(frozen=True)
class Guesses:
    """A score for each record (higher: a member) by rule, and of each patient in each shadow whether it took part."""

    scores: Mapping[str, np.ndarray]
    present: np.ndarray


@dataclass(frozen=True)
class TrueMembers:
    """Which records were trained on and whose they are, and who took part in the shadows."""

    member: np.ndarray
    owner: tuple[str, ...]
    coins: np.ndarray
    people: People


@dataclass(frozen=True)
class RecordMembership(Attack):
    """Was this record trained on, and how often is each patient told apart? From one seat, with all that it sees.

    ``on``: "model" looks at the last published model (anybody's seat); "models" at those of all rounds (a
    participant's); "updates" also at each client's own update of every round (the server's), or under assumed secure
    aggregation at their sum. ``looks`` rounds are looked at, evenly spread.

    About half of ``records`` (0: all there are) are training records of the clients, half come from their test parts,
    equally many of each client, patients whole. ``shadows`` federations like the one attacked (clients, defences,
    rounds, work) are trained with other seeds, side by side, and what every seat sees of them is kept: attacks of the
    same ``records``, ``shadows`` and ``looks`` share them. In each a fair coin decides for each patient whether its
    records take part. They start from the model that the federation attacked published before its first round
    (``initial = "published"``), or each from a model of its own seed ("each").
    That makes the attacker strong: it knows all other data. Where layers stay at the clients it puts layers of its own
    in their place, learnt from what else the client holds. ``shadows = 0`` trains none, for rules that need none; of
    patients it then says nothing.

    ``rest``: the regression is told what else each client trains on, as shadows are, which leaves the records in
    question alone to be explained. ``others = "server"``: records not trained on come from the server's test data,
    dealt out to the clients, where these hold none. That is fair where nothing but chance decided what is in that part.

    Scores: learnt, boosted trees over all looks, learnt with each shadow in turn as the target; of the last model
    alone difference, lira-online and lira-offline (Carlini et al. 2022), rmia (Zarifzadeh et al. 2024) and loss
    (Yeom et al. 2018); with single updates fedmia (Zhu et al. 2024), without shadows: how far a record's score under
    its own client's model lies above that under other clients', in their standard deviations, mean over rounds; and
    regression, also without shadows: each client's updates regressed on the gradients of all its records in question.

    Intervals resample clients, since records of one client share its training. Patients are counted in the shadows
    alone, where coins make it exact: see `leakline.leakage.exposure`.
    """

    records: int = 400
    shadows: int = NEEDED
    on: On = "model"
    looks: int = 16
    scores: tuple[Score, ...] = (
        "learnt", "difference", "lira-online", "lira-offline", "rmia", "loss", "fedmia", "regression",
    )  # fmt: skip
    risk: float = 0.9
    initial: Initial = "published"
    others: Literal["clients", "server"] = setting("clients", quiet=True)
    rest: bool = setting(False, quiet=True)

    @property
    def seat(self) -> Seat:  # type: ignore[override]
        """Anybody sees the last model, a participant every model, the server what clients send."""
        return {"model": Seat.PUBLIC, "models": Seat.CLIENT, "updates": Seat.SERVER}[self.on]

    def __post_init__(self) -> None:
        if self.shadows < 4 and (self.shadows or not self._alone):
            raise ValueError(
                f"shadows must be at least 4, or 0 with scores of {', '.join(WITHOUT_SHADOWS)} only: {self.shadows}"
            )
        if 0 < self.records < 4 or self.records < 0 or self.looks < 1 or not self.scores:
            raise ValueError(
                "at least 4 records (or 0 for all), a look and a score are needed: "
                f"{self.records}, {self.looks}, {self.scores}"
            )
        if not 0.5 < self.risk <= 1:
            raise ValueError(f"risk must be above 0.5 and at most 1: {self.risk}")

    @property
    def _alone(self) -> bool:
        """Whether no score needs a shadow."""
        return set(self.scores) <= set(WITHOUT_SHADOWS)

    # the examiner's half

    def check(self, federation: Federation) -> None:
        """Refuse, before training, what cannot be asked of this federation."""
        if federation.objective.name not in OBJECTIVES:
            raise _wrong(
                f"the loss {federation.objective.name!r} gives no probabilities", f"use one of: {', '.join(OBJECTIVES)}"
            )
        each = self._each(federation)
        for client in self._clients(federation):
            held = 0 if client.test is None else len(client.test)
            if not held:
                raise _wrong(
                    f"{client.name} holds no records that it does not train on",
                    'set client_test in [data], or others = "server" where the server has test data',
                )
            if len(units_of(client.train)) < 2:
                raise _wrong(
                    f"{client.name} trains on one {federation.task.group}: nobody can be left out",
                    "use clients with more",
                )
            if self.records and min(held, len(client.train)) < each:
                raise _wrong(
                    f"{client.name} has {len(client.train)} training and {held} other records; {each} of each are "
                    "asked for",
                    "lower records, set it to 0 for all there are, or change client_test in [data]",
                )
        if federation.private and self.rest:
            raise _wrong(
                "some layers stay at the clients, and their gradients are nobody's to know", "set rest = false"
            )
        if federation.private and min(len(known) for known in self._asked(federation).always) < FEWEST_BESIDE:
            raise _wrong(
                "some layers stay at the clients, and the records that are not asked about are fewer than "
                f"{FEWEST_BESIDE} at some client: layers in their place cannot be learnt",
                "lower records",
            )

    def remarks(self, federation: Federation) -> list[str]:
        """Warn where nobody says whose records are, and of so few shadows that no patient could be called exposed."""
        asked = self._asked(federation)
        found = []
        if self.shadows and not asked.known:
            found.append("membership-inference: nobody says whose records are, so each counts as a patient of its own")
        fewest = fewest_worlds(asked.patients)
        if 0 < self.shadows < fewest:
            found.append(
                f"membership-inference: with {self.shadows} shadows none of {asked.patients} patients could be called "
                f"exposed, not even one who is always told right; set shadows to {fewest} or more"
            )
        return found

    def wants(self, federation: Federation) -> Keep:
        """The updates of the rounds that are looked at; of the models sent alone, with one client's update."""
        if self.on == "model":
            return keep_none
        rounds = looked_at(federation.rounds, self.looks)
        single = self.on == "models" and federation.cohort.sampling == "full"
        first = federation.task.clients[0].name
        return lambda index, client: index in rounds and (client == first or not single)

    def effort(self, federation: Federation) -> Effort | None:
        """Shadow federations, beside those with which it was shown to find members."""
        return None if self._alone else Effort(self.shadows, NEEDED, "shadow federations")

    def trains(self, federation: Federation) -> dict[str, float]:
        """Rounds for the shadow federations, as many as the cell's own each; seats share them."""
        if not self.shadows:
            return {}
        about = f"{federation.strategy}/{federation.defences}/{self.records}/{self.looks}"
        return {f"shadows/{about}": float(self.shadows * federation.rounds)}

    def passes(self, federation: Federation) -> float:
        """Without shadows, which outweigh it: gradients of all in question, round by round; a look costs a third."""
        if self.shadows or self.on != "updates":
            return 0.0
        clients = federation.task.clients
        asked = 2 * self._each(federation) * len(clients)
        looks = (2 + min(REFERENCES, len(clients) - 1)) * asked / 3 if "fedmia" in self.scores else 0.0
        gradients = ALONE * asked if "regression" in self.scores else 0
        rest = max(sum(len(c.train) for c in clients) - asked / 2, 0.0) if gradients and self.rest else 0.0
        return len(looked_at(federation.rounds, self.looks)) * (gradients + rest + looks)

    def _each(self, federation: Federation) -> int:
        clients = self._clients(federation)
        most = max(len(data) for c in clients for data in (c.train, c.test) if data is not None)
        return max(1, self.records // (2 * len(clients))) if self.records else most

    def _clients(self, federation: Federation) -> Sequence[Client]:
        """The clients with records that they do not train on: their own, or the server's."""
        task = federation.task
        if self.others == "clients" or task.test is None:
            return task.clients
        return dealt(task.clients, task.test, Stream(0, -2, "examiner", "dealt").numpy())

    def _asked(self, federation: Federation) -> Asked:
        rng = Stream(federation.seed, -2, "examiner", "record-membership").numpy()
        return Asked.of(self._clients(federation), self._each(federation), rng)

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One question: all records of all clients."""
        federation = lab.federation
        self.check(federation)
        asked = self._asked(federation)
        coins = lab.stream("record-membership/coins").numpy().random((self.shadows, asked.patients)) < 0.5
        rounds = len(lab.cohorts())
        look = Look(
            asked.owners, asked.records, looked_at(rounds, self.looks),
            beside=asked.always if federation.private else (),
        )  # fmt: skip
        tables = lab.watched(asked.worlds(federation, coins, rounds, self.initial), look) if self.shadows else []
        one = Look(
            look.owners, look.records, look.rounds if tables or "fedmia" in self.scores else (),
            REFERENCES if "fedmia" in self.scores else 0, look.beside,
        )  # fmt: skip
        kept = [(index, lab.kept(index)) for index in (look.rounds if self.on != "model" else ())]
        past = [(index, found) for index, found in kept if found is not None]
        if len(past) < len(kept):
            raise _wrong("what was sent in the rounds looked at was not kept", "run the study with another --out")
        mine = one(federation, history(past, lab.final_weights()))
        asks = self.on == "updates" and "regression" in self.scores
        rest = asked.always if self.rest else ()
        by_gradients = regressed(federation, one, past, rest) if asks else np.full(len(asked.member), np.nan)
        view = Seen(
            looks_of(mine, self.on), mine["models"][-1], mine["others"], mine["spread"], mine["own"], by_gradients
        )
        hints = Shadows(
            np.array([looks_of(table, self.on) for table in tables]),
            np.array([table["models"][-1] for table in tables]), coins, asked.patient,
        )  # fmt: skip
        people = People.of(asked, federation, self.risk)
        yield Challenge(view, hints, TrueMembers(asked.member, tuple(asked.owner), coins, people))

    # the attacker's half

    def guess(self, view: Seen, hints: Shadows) -> Guesses:
        """A score for each record, higher for members; and of each patient who took part in which shadow."""
        taken = hints.coins[:, hints.patient]
        q, p = expit(view.last), expit(hints.last)
        found: dict[str, np.ndarray] = {"loss": view.last}
        for name, score in (
            ("difference", difference), ("lira-online", lira_online), ("lira-offline", lira_offline), ("rmia", rmia),
        ):  # fmt: skip
            if name in self.scores:
                found[name] = score(q, p, taken)
        if "learnt" in self.scores:
            found["learnt"] = learnt(view.looks, hints.looks, taken)
        if "fedmia" in self.scores and self.on == "updates" and np.isfinite(view.others).any():
            found["fedmia"] = np.nanmean((view.own - view.others) / (view.spread + 0.1), axis=0)
        if "regression" in self.scores and np.isfinite(view.regressed).any():
            found["regression"] = view.regressed
        return Guesses(
            {name: found[name] for name in self.scores if name in found},
            told_apart(hints.looks, hints.coins, hints.patient) if len(hints.coins) else hints.coins,
        )

    # the comparison

    def measure(self, guesses: Sequence[Guesses], secrets: Sequence[TrueMembers]) -> list[Reading | Artefact]:
        """AUC and ROC of every score; then the patients."""
        (guess,), (secret,) = guesses, secrets
        where = {"model": "on the model", "models": "on all models", "updates": "on updates"}[self.on]
        owners = np.array(secret.owner)
        found: list[Reading | Artefact] = []
        for name, scores in guess.scores.items():
            area = auc(scores, secret.member)
            if len(set(owners)) > 1:
                area = over_units(
                    lambda rows, s=scores: auc(s[rows], secret.member[rows]).value,  # type: ignore[misc]
                    owners,
                )
            note = where if name in WITHOUT_SHADOWS else f"{self.shadows} shadow federations, {where}"
            found += leaks({"auc": area}, tpr_at_fprs(scores, secret.member), {"rule": name, "seat": self.seat}, note)
        if not self.shadows:
            return found
        return found + patient_results(guess.present == secret.coins, secret.people, self.seat)


def _wrong(what: str, fix: str) -> StudyError:
    return StudyError(what, "membership-inference", fix)
