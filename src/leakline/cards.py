"""The privacy card: what is promised and what was measured, side by side, never one epsilon alone."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from leakline.federation import Federation
from leakline.leakage.brief import brief
from leakline.measures import VERDICT, Measure, measure_of, read_measures
from leakline.privacy import Claim, Guarantee, NoClaim, Unit, account, allowed, group, replace_one
from leakline.readings import Fact, Reading, too_little, work_of
from leakline.utility.baseline import beside, remark

LAST_ROUND = (
    "all rounds or the last are published; a round chosen by validation data is a release that no noise covers: who is "
    "in these data has no promise"
)
ASSUMED_SUM = "secure aggregation: the server sees only the sum of a round's updates; no protocol was run or checked"
OBSERVERS = {
    "server": "the server, which sees single updates",
    "malicious-server": "a server that alters the model it sends",
    "client": "participants, who see every published model",
    "public": "the public, which sees the final model",
}


@dataclass(frozen=True)
class Promise:
    """The formal half for one defence of a stack."""

    defence: str
    unit: str = ""
    adjacency: str = ""
    observer: str = ""
    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None
    method: str = ""
    releases: int = 0
    advantage: float | None = None
    verdict: str = ""
    replace_one: float | None = None
    assumptions: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    reason: str = ""
    instead: str = ""
    patient: float | None = None
    """A record's promise for the patient with the most records: epsilon of all of them together."""
    most_records: int = 0
    events: tuple[tuple[float, ...], ...] = ()
    """The releases that epsilon was worked out from: (mu, times, rate, copies) of Gaussian ones, (epsilon, times) of
    pure ones. So a card can be accounted again, alone or with others."""

    @property
    def formal(self) -> str:
        """The bound in words, or the literal ``none (heuristic)`` with its reason."""
        if self.epsilon is None:
            return f"none (heuristic): {self.reason}"
        mu = f", mu = {self.mu:.3g}" if self.mu is not None else ""
        return (
            f"epsilon = {number(self.epsilon)} at delta = {self.delta:g}{mu} ({self.method}, {self.releases} releases)"
        )


@dataclass(frozen=True)
class Card:
    """One federation's privacy card.

    ``stamp`` is set when the noise could be drawn again. ``measured`` are lower bounds on epsilon or mu from audits
    and attacks, ``leaks`` what attacks got, ``utility`` the price. ``broken`` says that a measurement exceeds the
    promise: a bug, or an assumption that does not hold. ``assumed``: what the whole card takes for granted.
    ``computed``: noise that was computed for an epsilon that is asked for.
    ``measures`` describes what is measured by attacks from outside the package.
    """

    title: str
    promises: tuple[Promise, ...]
    stamp: str = ""
    measured: tuple[Reading, ...] = ()
    leaks: tuple[Reading, ...] = ()
    utility: tuple[Reading, ...] = ()
    dropped: tuple[str, ...] = ()
    longer: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    measures: tuple[Measure, ...] = ()
    chosen: str = ""
    """What it cost that this setting was chosen among others (`leakline choose --private`)."""
    computed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found = asdict(self)
        for name in ("measured", "leaks", "utility"):
            found[name] = [reading.line() for reading in getattr(self, name)]
        return {**found, "measures": [measure.line() for measure in self.measures]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Card:
        """The inverse of `as_dict`."""
        promises = tuple(_promise(p) for p in values["promises"])
        readings = {k: tuple(Reading.of(r) for r in values.get(k, ())) for k in ("measured", "leaks", "utility")}
        return cls(
            values["title"], promises, values.get("stamp", ""), **readings,
            dropped=tuple(values.get("dropped", ())), longer=tuple(values.get("longer", ())),
            broken=tuple(values.get("broken", ())), assumed=tuple(values.get("assumed", ())),
            measures=tuple(read_measures(values.get("measures")).values()), chosen=str(values.get("chosen", "")),
            computed=tuple(values.get("computed", ())),
        )  # fmt: skip

    def measure(self, name: str) -> Measure:
        """What a measure on this card means."""
        return measure_of(name, {measure.name: measure for measure in self.measures})

    @property
    def leading(self) -> tuple[Promise, ...]:
        """The promises that may stand for the whole: where a client has one, a sub-client's does not count.

        A defence that splits clients promises more to a part than to the client; the smaller epsilon is not the
        client's.
        """
        clients = any(p.unit == Unit.CLIENT for p in self.promises)
        return tuple(p for p in self.promises if not (clients and p.unit == Unit.SUB_CLIENT))

    def rows(self) -> list[tuple[str, str]]:
        """The card as labelled lines, for a terminal, a page or a paper; of every attack what people read first."""
        lines: list[tuple[str, str]] = [("!", self.stamp)] if self.stamp else []
        lines += [("!", text) for text in self.broken]
        lines += [("assumed", text) for text in self.assumed]
        lines += [("noise", text) for text in self.computed]
        for promise in self.promises:
            several = f" ({promise.defence})" if len(self.promises) > 1 else ""
            if promise.epsilon is not None:
                lines += [
                    (f"protects{several}", f"one {promise.unit} ({promise.adjacency})"),
                    ("against", self._observer(promise.observer)),
                    ("promise", promise.formal),
                    ("in words", _words(promise)),
                ]
                if promise.replace_one is not None:
                    lines.append(("replace-one", f"epsilon = {number(promise.replace_one)} at the same delta"))
                if promise.patient is not None:
                    many = f"for whoever has as many as {promise.most_records} records here"
                    lines.append(("per patient", f"epsilon = {number(promise.patient)} at the same delta, {many}"))
                lines += [("assumes", text) for text in promise.assumptions]
                lines += [("not covered", text) for text in promise.outside]
            else:
                lines.append((f"promise{several}", promise.formal))
                lines += [("instead", promise.instead)] if promise.instead else []
        lines += [("chosen", self.chosen)] if self.chosen else []
        lines += [("measured", _measured(r)) for r in self.measured] or [("measured", "no audit was run")]
        lines += [("mind", text) for text in _mistaken(self)]
        lines += [("audit", r.note) for r in self.leaks if r.measure == VERDICT and r.value < 1]
        lines += [("attack", text) for text in self._attacks()]
        lines += [("utility", text) for text in _useful(self.utility)]
        lines += [("mind", f"the model is {text}")] if (text := remark(self.utility)) else []
        lines += [("dropped", text) for text in self.dropped]
        lines += [("mind", text) for text in self.longer]
        return lines

    def _observer(self, seat: str) -> str:
        if seat == "server" and ASSUMED_SUM in self.assumed:
            return "the server, which sees only the sum of updates (assumed) and would be kept to the promise anyway"
        return OBSERVERS.get(seat, seat)

    def _attacks(self) -> list[str]:
        lines = []
        for attack in brief([r for r in self.leaks if r.measure != VERDICT], lambda r: r.value, self.measure):
            told = [_leak(r) for r in attack.shown] + ([f"{attack.by}: {attack.rest}"] if attack.rest else [])
            lines += with_effort(told, attack.by, attack.shown[0].about)
        return lines

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in self.rows())
        return f"<table><caption>{html.escape(self.title)}</caption>{cells}</table>"


def _promise(values: Mapping[str, Any]) -> Promise:
    listed: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return Promise(**{**listed, "events": tuple(tuple(event) for event in values.get("events", ()))})


def promise_of(defence: str, claim: Claim | NoClaim, delta: float) -> Promise:
    """The formal half of a claim."""
    if isinstance(claim, NoClaim):
        return Promise(defence, reason=claim.reason, instead=claim.instead)
    found: Guarantee = account(claim, delta)
    other = None
    if claim.adjacency == "add-remove":
        other = account(replace_one(claim), delta).epsilon
    return Promise(
        defence, str(claim.unit), str(claim.adjacency), str(claim.observer), found.epsilon, found.delta, found.mu,
        found.method, claim.releases, found.advantage, found.verdict, other, claim.assumptions, claim.outside,
        events=tuple(astuple(event) for event in claim.events),
    )  # fmt: skip


def _per_patient(promise: Promise, claim: Claim | NoClaim, delta: float, most: int | None) -> Promise:
    """A record's promise with the patient's beside it, where it is known how many records one has at most."""
    if most is None or isinstance(claim, NoClaim) or claim.unit is not Unit.RECORD:
        return promise
    return replace(promise, patient=account(group(claim, most, Unit.PATIENT), delta).epsilon, most_records=most)


def formal_card(title: str, federation: Federation, delta: float, facts: Sequence[Mapping[str, float]] = ()) -> Card:
    """The half of a card that is known before training (and again, with the rounds' facts, after it).

    A promise is stated at ``delta``, or where an epsilon was asked for, at the delta that was asked for with it.
    """
    claims = federation.claims(facts)
    most = federation.task.most_records
    at = {name: federation.stack.asked_at(name) or delta for name in claims}
    promises = tuple(_per_patient(promise_of(name, c, at[name]), c, at[name], most) for name, c in claims.items())
    noisy = any(isinstance(claim, Claim) for claim in claims.values())
    stamp = (
        "NOT PRIVATE: the noise is seeded, whoever knows the seed can subtract it"
        if noisy and federation.noise == "seeded"
        else ""
    )
    said = {
        ASSUMED_SUM: federation.cohort.secure_aggregation == "assumed",
        LAST_ROUND: federation.judging.validation != "none" and noisy,
    }
    assumed = tuple(text for text, true in said.items() if true)
    return Card(title, promises, stamp, assumed=assumed, computed=federation.stack.computed)


def violations(card: Card) -> tuple[str, ...]:
    """Measured lower bounds that exceed what is promised for the same unit; without a unit they are of the whole.

    Promises that an audit found broken by other means (noise of another law, sampling that is not done) come after.
    """
    found = []
    for reading in card.measured:
        unit = reading.about.get("unit", "")
        for promise in card.promises if unit else card.leading:
            if reading.low is None or unit not in ("", promise.unit):
                continue
            bound = _allowed(promise, reading)
            if reading.low > bound * (1 + 1e-9):
                found.append(
                    f"BROKEN: {reading.by} measured {reading.label} >= {reading.low:.3g}, "
                    f"above the promised {bound:.3g} of {promise.defence}"
                )
    return (*found, *(r.note for r in card.leaks if r.measure == VERDICT and r.value == 1))


def _allowed(promise: Promise, reading: Reading) -> float:
    """The most that a promise allows a measured lower bound to be: of mu, or of epsilon at the reading's own delta."""
    if promise.epsilon is None or promise.delta is None or reading.measure not in ("epsilon", "mu"):
        return math.inf
    if reading.measure == "mu":
        return math.inf if promise.mu is None else promise.mu
    guarantee = Guarantee(promise.epsilon, promise.delta, promise.mu, promise.method)
    return allowed(guarantee, float(reading.about.get("delta", 0.0)))


def _mistaken(card: Card) -> list[str]:
    """Where what was measured of a client exceeds what is promised to a sub-client: no breach, but easily misread."""
    found = []
    for promise in set(card.promises) - set(card.leading):
        for reading in card.measured:
            whole = reading.measure == "mu" and reading.about.get("unit") == Unit.CLIENT
            if whole and promise.mu is not None and (reading.low or 0.0) > promise.mu:
                found.append(
                    f"the promise per {promise.unit} (mu = {promise.mu:.3g}) does not hold for a client: "
                    f"{reading.by} measured mu per client >= {reading.low:.3g}"
                )
    return found


def number(value: float) -> str:
    """An epsilon as people write it."""
    if not math.isfinite(value):
        return "infinite"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _words(promise: Promise) -> str:
    assert promise.advantage is not None
    right = 50 * (1 + promise.advantage)
    shown = f"{right:.0f}" if right < 99 else f"{right:.4g}"
    text = f"the best attacker may be right {shown} of 100 times (blind guessing: 50): {promise.verdict}"
    return text + (" - this promise protects nobody in practice" if promise.verdict == "vacuous" else "")


def _interval(r: Reading) -> str:
    if r.low is not None and r.high is not None:
        return f" [{r.low:.3g}, {r.high:.3g}]"
    return f" (at least {r.low:.3g})" if r.low is not None else ""


def _shown(r: Reading) -> str:
    count = f", n = {r.n}" if r.n is not None else ""
    note = f"; {r.note}" if r.note else ""
    return f"{r.label} {r.value:.3f}{_interval(r)}{count}{note}"


def _useful(readings: Sequence[Reading]) -> list[str]:
    """Utility figures beside what the constant answer gets, which is named once."""
    texts = beside(readings)
    return [_shown(r) + (f" ({text})" if text else "") for r, text in zip(readings, texts, strict=True)]


def with_effort(told: Sequence[str], by: str, about: Mapping[str, Fact]) -> list[str]:
    """An attack's lines with how much work it was given beside what it needs, if that is known.

    That it was too little is read before the figures, and so stays on a short card.
    """
    if short := too_little(about):
        return [f"{by}: {short}: if it failed, that says nothing", *told]
    return [*told, f"{by}: {work}"] if (work := work_of(about)) else list(told)


def _leak(r: Reading) -> str:
    chance = f" (chance {r.chance:.2g})" if r.chance is not None else ""
    return f"{r.by}: {_shown(r)}{chance}"


def _measured(r: Reading) -> str:
    low = number(r.low if r.low is not None else r.value)
    return f"{r.label} >= {low} ({r.by}, {r.n} trials{'; ' + r.note if r.note else ''})"
