"""Canaries inside a real training run: what all rounds together gave away of each, from one run.

Each canary is in or not by a fair coin. The observer adds up, over all rounds, how far what it sees points along each
canary, and guesses the coins. Right guesses prove a lower bound on epsilon for any mechanism (Steinke et al. 2023) and
one on mu where mu-GDP is promised (Mahloujifar et al. 2024): of training as it happened, with adaptive clips, drop-outs
and memory. Where scores look like one normal law and its shift, their distance is an estimate besides (`two_laws`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from leakline.attacks.audit.in_run_scores import RoundSeen, Sought, along_clients, along_records, view_of
from leakline.attacks.audit.insertion import Aim, Inserted, Kind, aim, insert, most, told, wrong
from leakline.attacks.audit.wide import Remark
from leakline.attacks.base import Attack, Challenge, Lab, Sample
from leakline.data.elsewhere import Elsewhere
from leakline.errors import LeaklineError
from leakline.federation import Federation, federate, initial_weights
from leakline.leakage.one_run import best_guessed, one_run_bound_from_scores, one_run_mu_bound_from_scores
from leakline.leakage.two_laws import two_laws
from leakline.privacy import Claim, Guarantee, NoClaim, Seat, account, allowed, gdp_epsilon
from leakline.readings import Fact, Reading
from leakline.runtimes.local import LocalTransport
from leakline.weights import Weights

FEWEST_CANARIES = 40
"""With fewer, not even guesses that are all right certify anything to speak of."""
FEWEST_SAMPLED = 10
"""With fewer rounds one of them is too large a part of the audit to be played beforehand for its time."""
MU_SHARE = 0.9
"""Share of alpha that goes to the bound on mu where there is one; that on epsilon is much weaker with any share."""


@dataclass(frozen=True)
class Truth:
    """What the examiner knows at the end: the coins, the promise of this very run, and what the canaries cost."""

    present: np.ndarray
    aim: Aim
    promised: Guarantee | None
    same: bool
    """Whether the promise with canaries is that of the federation without them."""
    about: str
    cost: tuple[float, float, float, int] | None


@dataclass(frozen=True)
class InRunAudit(Attack):
    """What did training really give away? Canaries by coins inside one whole run of the same federation.

    ``canaries`` of a ``kind``: clients that send a vector along a "random" direction or in a "single" value, ``length``
    times as long as the clip; records that are random "patterns", "mislabelled" (test records of the client) or
    "blank"; "auto" takes random directions or patterns, as the stack promises something for clients or records.
    Canaries count as clients or records like any other: means are planned for them, and the promise is computed with
    them in. A canary client's sign changes from round to round, as often + as -, so that noise which returns cancels
    itself and not the canary. ``confidence`` is that of both bounds together, ``delta`` that of epsilon.

    The promise of records under DP-SGD takes the number of a client's records for known. Canary records that are
    not in are left out, so it varies with the coins; no guess looks at it.
    """

    canaries: int = 2000
    kind: Kind = "auto"
    length: float = 4.0
    confidence: float = 0.95
    delta: float = 1e-5
    seat: ClassVar[Seat] = Seat.CLIENT

    def __post_init__(self) -> None:
        if self.canaries < FEWEST_CANARIES:
            raise ValueError(f"canaries must be at least {FEWEST_CANARIES}, or one run proves nothing: {self.canaries}")
        if not self.length > 0:
            raise ValueError(f"length must be positive: {self.length}")
        if not 0 < self.confidence < 1 or not 0 < self.delta < 1:
            raise ValueError(f"confidence and delta must lie in (0, 1): {self.confidence}, {self.delta}")

    # before training

    def trains(self, federation: Federation) -> dict[str, float]:
        """One more run; records that canaries add are trained on too."""
        own = sum(len(c.train) for c in federation.task.clients)
        more = self._count(federation) / (2 * own) if aim(federation, self.kind).records and own else 0.0
        return {f"in-run/{federation.strategy}/{federation.defences}": federation.rounds * (1 + more)}

    def samples(self, federation: Federation) -> list[Sample]:
        """One round with half of the canaries in, and what it shows of them all: canaries outweigh the clients.

        None where a round is more than a tenth of all.
        """
        if federation.rounds < FEWEST_SAMPLED:
            return []
        wanted = aim(federation, self.kind)
        inserted = self._inserted(federation, wanted, np.arange(self._count(federation)) % 2 == 0, 1.0)
        world, seen = inserted.federation, _watched(inserted, wanted)

        def do(workers: int) -> None:
            with LocalTransport(world, workers) as transport:
                first = next(federate(world, transport, keep=lambda index, client: client in seen))
            self.guess(view_of(first), Sought(inserted, wanted, 0, federation.bench()))

        return [Sample(do, 1 / federation.rounds)]

    def check(self, federation: Federation) -> None:
        """Refuse a federation that has no room for the canaries, or whose promise they would void."""
        wanted = aim(federation, self.kind)
        self._check_here(federation, wanted)
        room, why = most(federation, wanted.kind)
        if room < FEWEST_CANARIES:
            raise wrong(
                f"{room} canaries fit, and {FEWEST_CANARIES} are needed: {why}",
                fix="raise client_test in [data], or take another kind",
            )
        if federation.rounds < 2 and not wanted.records and wanted.claim is None:
            return
        world = self._inserted(federation, wanted, np.ones(self._count(federation), dtype=bool), 1.0).federation
        try:
            world.stack.check(world)
            claims = world.claims()
        except LeaklineError as error:
            raise wrong(f"the federation with canaries cannot be: {error.what}", fix=error.fix) from error
        now = claims.get(wanted.defence)
        if wanted.claim is not None and not isinstance(now, Claim):
            reason = now.reason if isinstance(now, NoClaim) else "it has another"
            raise wrong(
                f"canaries count as {'records' if wanted.records else 'clients'}, and with them the promise of "
                f"{wanted.defence} is void: {reason}",
                fix="take fewer canaries, or another kind",
            )

    def inside(self, federation: Federation, nodes: bool) -> bool:
        """Wherever it trains, but for canary records: no node takes them in; where all data are here, so are they."""
        return not nodes or _away(federation) or not aim(federation, self.kind).records

    def _check_here(self, federation: Federation, wanted: Aim) -> None:
        """Where clients' data are at nodes, only clients can be played beside them, of a length that is known here."""
        if not _away(federation):
            return
        if wanted.records:
            raise wrong(
                f"canaries of the kind {wanted.kind} lie among a client's own records, and those are at its node",
                fix='take kind = "random" or "single", or audit the same study on data that are here',
            )
        if self._clip(federation) is None:
            raise wrong(
                "canaries are as long as a client's update where no clip is known, and those are at the nodes",
                fix="audit a defence that clips, or the same study on data that are here",
            )

    def remarks(self, federation: Federation) -> list[str]:
        """What the canaries do to the federation, and how much they could find."""
        wanted, count = aim(federation, self.kind), self._count(federation)
        said = []
        if count < self.canaries:
            said.append(
                f"in-run-audit: {count} canaries instead of {self.canaries}: {most(federation, wanted.kind)[1]}"
            )
        if wanted.claim is None:
            return [*said, f"in-run-audit: nothing is promised for a {wanted.unit}: its bound is held against nothing"]
        world = self._inserted(federation, wanted, np.ones(count, dtype=bool), 1.0).federation
        now = world.claims().get(wanted.defence)
        before = account(wanted.claim, self.delta)
        if isinstance(now, Claim) and (after := account(now, self.delta)) != before:
            said.append(
                f"in-run-audit: with {count} canaries the promise of {wanted.defence} is epsilon "
                f"{after.epsilon:.3g} instead of {before.epsilon:.3g}: bounds are held against the former"
            )
        if before.mu is not None:
            _, least = best_guessed(count, before.mu, self._level)
            said.append(
                f"in-run-audit: {count} canaries find 9 of 10 times "
                + (f"a mu of {least:.3g} or more" if math.isfinite(least) else "no violation at all")
                + f" where {before.mu:.3g} is promised"
            )
        return said

    @property
    def _level(self) -> float:
        """The confidence of the bound on mu."""
        return 1 - (1 - self.confidence) * MU_SHARE

    def _count(self, federation: Federation) -> int:
        return min(self.canaries, most(federation, aim(federation, self.kind).kind)[0])

    def _inserted(self, federation: Federation, wanted: Aim, coins: np.ndarray, length: float) -> Inserted:
        return insert(federation, wanted, len(coins), length, coins)

    # the examiner's half

    def challenges(self, lab: Lab) -> Iterator[Challenge]:
        """One question per round: how far does what you see point along each canary? Trains once."""
        self.check(lab.federation)
        wanted = aim(lab.federation, self.kind)
        coins = lab.stream("in-run-audit/coins").numpy().random(self._count(lab.federation)) < 0.5
        length = self._length(lab)
        inserted = self._inserted(lab.federation, wanted, coins, length)
        world, bench = inserted.federation, lab.federation.bench()
        seen = _watched(inserted, wanted)
        facts, lost = [], 0
        final = initial_weights(world)
        with lab.place(world, told(inserted, wanted, length)) as transport:
            for round_ in federate(world, transport, keep=lambda index, client: client in seen):
                facts.append(round_.facts)
                lost += len(round_.dropped)
                final = round_.result
                yield Challenge(view_of(round_), Sought(inserted, wanted, round_.index, bench), None)
                done = round_.index + 1  # looked at too, by now
                lab.says(f"in-run-audit: round {done} of {world.rounds}", done / world.rounds)
        claim = world.claims(facts).get(wanted.defence) if wanted.claim is not None else None
        promised = account(claim, self.delta) if isinstance(claim, Claim) else None
        same = wanted.claim is None or promised == account(wanted.claim, self.delta)
        about = self._about(wanted, coins, world.rounds, length, lost)
        truth = Truth(coins, wanted, promised, same, about, _cost(lab, final))
        yield Challenge(None, None, truth)

    def _length(self, lab: Lab) -> float:
        """So many times the clip; where none is known, as long as one client's update is."""
        federation, clip = lab.federation, self._clip(lab.federation)
        if clip is not None:
            found = self.length * clip
        else:
            first = federation.task.clients[0].name
            found = lab.probe(initial_weights(federation), 0, clients=[first], memories={})[0].delta.norm()
        return min(found, 0.999 * federation.cohort.max_norm) if federation.cohort.max_norm else found

    @staticmethod
    def _clip(federation: Federation) -> float | None:
        """The clip that the stack states."""
        clip = federation.stack.stated(federation.expected()).get("clip")
        return float(clip) if isinstance(clip, int | float) else None

    def _about(self, wanted: Aim, coins: np.ndarray, rounds: int, length: float, lost: int) -> str:
        what = (
            f"{wanted.kind} records" if wanted.records else f"clients, {wanted.kind} directions of length {length:.3g}"
        )
        drops = f", {lost} answers dropped" if lost else ""
        return f"{len(coins)} canaries ({what}; {int(coins.sum())} in), all {rounds} rounds as trained{drops}"

    # the attacker's half

    def guess(self, view: RoundSeen | None, hints: Sought | None) -> np.ndarray:
        """How far a round points along each canary; nothing is left to guess at the end."""
        if view is None or hints is None:
            return np.zeros(0)
        return along_records(view, hints) if hints.aim.records else along_clients(view, hints)

    # the comparison

    def measure(self, guesses: Sequence[np.ndarray], secrets: Sequence[Any]) -> list[Reading]:
        """Both bounds, the estimate, and what the canaries cost."""
        truth: Truth = secrets[-1]
        scores = np.sum(np.stack(guesses[:-1]), axis=0)
        unit = truth.aim.unit if truth.same else f"{truth.aim.unit}, canaries counted"
        about: dict[str, Fact] = {"unit": unit, "defence": truth.aim.defence, "confidence": self.confidence}
        found = [self._epsilon(scores, truth, about)]
        if self._has_mu(truth):
            found.insert(0, self._mu(scores, truth, about))
        told = [self._broken(reading, truth) for reading in found]
        found += [remark.reading() for remark in told if remark is not None and not truth.same]
        found += self._estimate(scores, truth, unit)
        if truth.cost is not None:
            value, low, high, n = truth.cost
            found.append(
                Reading(
                    "accuracy-lost",
                    value,
                    low,
                    high,
                    n,
                    chance=0.0,
                    note=f"to {truth.about}; one run with, one without",
                )
            )
        return found

    @staticmethod
    def _has_mu(truth: Truth) -> bool:
        return truth.promised is not None and truth.promised.mu is not None

    def _mu(self, scores: np.ndarray, truth: Truth, about: dict[str, Fact]) -> Reading:
        assert truth.promised is not None
        assert truth.promised.mu is not None
        guessed, least = best_guessed(len(scores), truth.promised.mu, self._level)
        bound = one_run_mu_bound_from_scores(scores, truth.present, self._level, guessed)
        power = f"from {least:.3g} on" if math.isfinite(least) else "no violation, whatever its size,"
        note = (
            f"{truth.about}; promised {truth.promised.mu:.3g}; {power} would have been found 9 of 10 times; "
            f"{bound.method}, {bound.trials} guesses, at most {bound.ceiling:.3g}, "
            f"at {100 * self.confidence:.4g} % together with epsilon"
        )
        more: dict[str, Fact] = {"promised": truth.promised.mu, "ceiling": bound.ceiling}
        return Reading("mu", bound.low, bound.low, n=len(scores), about={**about, **more}, note=note)

    def _epsilon(self, scores: np.ndarray, truth: Truth, about: dict[str, Fact]) -> Reading:
        both = self._has_mu(truth)
        level = 1 - (1 - self.confidence) * (1 - MU_SHARE) if both else self.confidence
        beside = " together with mu" if both else ""
        bound = one_run_bound_from_scores(scores, truth.present, self.delta, level)
        note = (
            f"{truth.about}; {bound.method}, {bound.trials} guesses, at most {bound.ceiling:.3g}, "
            f"at {100 * self.confidence:.4g} %{beside}, delta {self.delta:g}"
        )
        more: dict[str, Fact] = {"ceiling": bound.ceiling, "delta": self.delta}
        if truth.promised is not None and math.isfinite(truth.promised.epsilon):
            more["promised"] = truth.promised.epsilon
        return Reading("epsilon", bound.low, bound.low, n=len(scores), about={**about, **more}, note=note)

    def _broken(self, reading: Reading, truth: Truth) -> Remark | None:
        if truth.promised is None or reading.low is None:
            return None
        mu = reading.measure == "mu"
        limit = truth.promised.mu if mu else allowed(truth.promised, self.delta)
        if limit is None or reading.low <= limit * (1 + 1e-9):
            return None
        text = f"{reading.measure} of all rounds >= {reading.low:.3g}, above the promised {limit:.3g}, canaries counted"
        return Remark("BROKEN", truth.aim.defence, truth.aim.unit, text, reading.low, limit)

    def _estimate(self, scores: np.ndarray, truth: Truth, unit: str) -> list[Reading]:
        apart = two_laws(scores, truth.present)
        if isinstance(apart, str) or truth.aim.records:
            return []
        low, value, high = (gdp_epsilon(mu, self.delta) for mu in (apart.low, apart.mu, apart.high))
        about: dict[str, Fact] = {"unit": unit, "delta": self.delta}
        if truth.promised is not None and math.isfinite(truth.promised.epsilon):
            about["promised"] = truth.promised.epsilon
        note = (
            f"an ESTIMATE, no bound: {truth.about}; mu {apart.mu:.3g} [{apart.low:.3g}, {apart.high:.3g}] at 95 % if "
            "scores are normal"
        )
        return [Reading("fitted-epsilon", value, low, high, n=len(scores), chance=0.0, about=about, note=note)]


def _watched(inserted: Inserted, wanted: Aim) -> set[str]:
    """Whose updates the observer sees."""
    return set(inserted.names) | set(inserted.records) if wanted.single else set()


def _away(federation: Federation) -> bool:
    """Whether somebody's data are on another machine."""
    return any(isinstance(client.train, Elsewhere) for client in federation.task.clients)


def _cost(lab: Lab, final: Weights) -> tuple[float, float, float, int] | None:
    """How much less often the model with canaries is right on the server's test data, with a 95 % interval (paired)."""
    federation = lab.federation
    test = federation.task.test
    if (
        test is None
        or len(test) < 2
        or federation.task.kind != "classification"
        or federation.wire != federation.layout
    ):
        return None
    bench = federation.bench()
    right = [
        (bench.outputs(weights, test).argmax(dim=1) == test.y).double().numpy()
        for weights in (lab.final_weights(), final)
    ]
    lost = right[0] - right[1]
    half = 1.96 * float(lost.std(ddof=1)) / math.sqrt(len(lost))
    return float(lost.mean()), float(lost.mean()) - half, float(lost.mean()) + half, len(lost)
