"""Beyond the canary game: the law of the noise, how far neighbours reach, what is counted, and memory over rounds.

Search is cheap and certain findings are few: canaries of many lengths and directions are tried once each under
coupled noise; one that seems to move what is seen by more than is claimed is confirmed, exactly where noise is
added (`reach`), by a game with fresh sessions where it is not (`joint`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from scipy import stats

from leakline.attacks.audit import joint, likelihood
from leakline.attacks.audit.law import LEVEL, FloatArray, departures, size_follows
from leakline.attacks.audit.reach import Canary, Noise, Reach, reach, rowwise, shift, sizes, steady
from leakline.attacks.audit.sampling import miscounted
from leakline.attacks.audit.session import PublishSession, RecordSession, ReleaseSession, Session, steep_bench
from leakline.attacks.audit.workbench import small
from leakline.errors import LeaklineError
from leakline.federation import Federation
from leakline.leakage import lower_bound_from_scores, mu_bound_from_scores
from leakline.measures import VERDICT
from leakline.privacy import Adjacency, Claim, Gaussian, Pure, Seat, Unit, total_mu
from leakline.readings import Reading
from leakline.weights import Layout

REPORTS, SESSIONS = 1000, 600
"""Sessions of noise alone, at the server's seat (where they are cheap and twice as wide) and elsewhere."""
VALUES = 40
"""Most values of the small copy that sessions are played on: of all rounds together, fewer than half the sessions."""
MARGIN = 1.001
"""What rounding may add to how far a canary reaches."""
ALPHA = 1e-4
"""Level of a joint game; at most one is played for each session."""

Verdict = Literal["BROKEN", "SUSPECT", "NOT AUDITED", "LOOKED"]


@dataclass(frozen=True)
class Remark:
    """What was found beside the main game. ``low`` and ``promised`` are mu or epsilon of one release, where known."""

    verdict: Verdict
    defence: str
    unit: str
    text: str
    low: float = math.nan
    promised: float = math.nan

    def __str__(self) -> str:
        return f"{self.verdict}: {self.text} ({self.defence})"

    def reading(self) -> Reading:
        """As a line of a store, from which the card takes its verdict."""
        weight = {"BROKEN": 1.0, "SUSPECT": 0.5}.get(self.verdict, 0.0)
        return Reading(VERDICT, weight, by="audit", note=str(self))


def look(federation: Federation) -> Iterator[Remark]:
    """Everything that is found about each claim of a stack, and a line of what was looked at."""
    for name, claim in federation.claims().items():
        if isinstance(claim, Claim):
            yield from _Look(federation, name, claim).remarks()


@dataclass(frozen=True)
class _Look:
    federation: Federation
    name: str
    claim: Claim

    def remarks(self) -> Iterator[Remark]:
        for departure in miscounted(self.federation, self.claim):
            yield self._remark("BROKEN" if departure.certain else "SUSPECT", departure.text)
        try:
            if self.claim.unit in (Unit.RECORD, Unit.PATIENT):
                yield from self._records()
            elif any(isinstance(event, Pure) for event in self.claim.events):
                yield from self._pure()
            elif self.claim.observer is Seat.SERVER:
                yield from self._reports()
            else:
                yield from self._published()
        except LeaklineError as error:
            yield self._remark("NOT AUDITED", f"claimed, not audited: a session ended ({error.what})")

    def _remark(self, verdict: Verdict, text: str, low: float = math.nan, promised: float = math.nan) -> Remark:
        return Remark(verdict, self.name, str(self.claim.unit), text, low, promised)

    # --- one seat each -----------------------------------------------------------------------------------------------

    def _reports(self) -> Iterator[Remark]:
        bench = small(self.federation, most=VALUES)
        seeded = ReleaseSession(replace(bench, noise="seeded"))
        yield from self._bare_figures(seeded)
        yield from self._seeded(ReleaseSession(bench))
        noise = _noise(ReleaseSession(bench), REPORTS)
        yield from self._examine(seeded, noise, list(_canaries(seeded, noise, bench.wire, self.claim.adjacency)))

    def _published(self) -> Iterator[Remark]:
        bench = small(self.federation, most=VALUES)
        seeded = replace(bench, noise="seeded")
        parts: Literal["all", "one"] = "one" if self.claim.unit is Unit.SUB_CLIENT else "all"
        session = PublishSession(seeded, parts=parts)
        yield from self._seeded(PublishSession(bench, parts=parts))
        noise = _noise(PublishSession(bench, parts=parts), SESSIONS)
        yield from self._examine(session, noise, list(_canaries(session, noise, bench.wire, self.claim.adjacency)))
        crowd = len(bench.task.clients)
        sampled = bench.cohort.sampling == "poisson"
        scenes = [replace(session, rounds=2, others="long")]
        scenes += [replace(session, rounds=2, dropped=1)] if crowd > 2 else []
        scenes += [replace(session, rounds=2, attending=0)] if sampled else []
        for scene in scenes:
            fewer = _noise(scene, SESSIONS // 3)
            short = [
                Canary("everywhere", _zero(one, self.claim.adjacency), one)
                for one in (steady(torch.ones(scene.values), length, 2) for length in sizes(False))
            ]
            yield from self._examine(scene, fewer, short, quiet=True)
            if sampled and (told := size_follows(fewer.values, noise.values)):
                yield self._remark("BROKEN", told.text)
        if sampled:
            nobody = _noise(replace(session, rounds=2, attending=0), SESSIONS // 3, away=True)
            if told := size_follows(nobody.values, noise.values):
                yield self._remark("BROKEN", f"{told.text}, and where nobody came")

    def _records(self) -> Iterator[Remark]:
        bench = steep_bench(self.federation, self.federation.noise)
        claim = bench.claims().get(self.name)
        if not isinstance(claim, Claim):
            yield self._remark("NOT AUDITED", "claimed, not audited: no claim is made around a linear classifier")
            return
        bench, whole, summed = _in_scale(bench), claim.unit is Unit.PATIENT, claim.observer is not Seat.SERVER
        look = replace(self, claim=claim)
        seeded = replace(bench, noise="seeded")
        yield from look._seeded(RecordSession(bench, whole=whole, summed=summed))
        noise = _noise(RecordSession(bench, whole=whole, summed=summed), SESSIONS)
        if any(isinstance(event, Gaussian) and event.rate < 1 for event in claim.events):
            yield from look._batch_told(RecordSession(seeded, rounds=1, whole=whole, summed=summed))
        for others in ("short", "long"):
            session = RecordSession(seeded, others=others, whole=whole, summed=summed)
            canaries = list(_records(session))
            yield from look._examine(session, noise, canaries, quiet=others == "long")

    def _batch_told(self, session: RecordSession) -> Iterator[Remark]:
        """Amplification counts on nobody knowing who was drawn: the noise must not tell how many were."""
        seeds = range(3 * 10**6, 3 * 10**6 + SESSIONS // 3)
        energy = [float(session.see(None, seed, quiet=True).double().square().sum()) for seed in seeds]
        told = stats.spearmanr(energy, [session.drawn(seed) for seed in seeds])
        if told.pvalue < LEVEL:
            text = f"the size of the noise tells how many records were drawn (rank correlation {told.statistic:.2f})"
            yield self._remark("BROKEN", f"{text}, and amplification counts on nobody knowing")

    def _pure(self) -> Iterator[Remark]:
        """Reports of a pure mechanism: two inputs of one direction and unlike lengths, judged by a learned rule."""
        session = ReleaseSession(replace(small(self.federation, most=VALUES), noise="seeded"), rounds=2)
        ones = torch.ones(session.values)
        yield from self._bare_figures(session)
        pair = Canary("long or short", steady(ones, 1e-3, 2), steady(ones, 1000.0, 2))
        yield from self._confirm(session, pair)

    # --- what is asked -----------------------------------------------------------------------------------------------

    @property
    def _mu(self) -> float:
        """What is claimed for one round."""
        rounds = 2 if self.claim.unit in (Unit.RECORD, Unit.PATIENT) else max(e.times for e in self.claim.events)
        return total_mu([e for e in self.claim.events if isinstance(e, Gaussian)]) / math.sqrt(rounds)

    def _examine(self, session: Session, noise: Noise, canaries: list[Canary], quiet: bool = False) -> Iterator[Remark]:
        """The law of the noise, then how far each canary reaches."""
        wrong = departures(noise.values)
        noise.alike = not wrong
        best, farthest, leads = Reach(0.0, 0.0, 1, "nothing moved"), canaries[-1], []
        for canary in canaries:
            rough = reach(shift(session, canary, (1,)), noise)
            sure = rough if rough.of_one <= self._mu * MARGIN else reach(shift(session, canary), noise)
            if sure.of_one > best.of_one:
                best, farthest = sure, canary
            if sure is rough:
                continue
            if sure.of_one > self._mu * MARGIN:
                yield self._remark(
                    "BROKEN",
                    f"canary {canary.name} moves {sure.how} by at least {sure.of_one:.3g} standard deviations of its "
                    f"noise a release, above the promised {self._mu:.3g}",
                    sure.of_one,
                    self._mu,
                )
                return
            leads.append(canary)
        if leads or not (quiet or all(shift(session, canaries[-1]).exact)):
            yield from self._confirm(session, (leads or canaries)[-1])
        if wrong and not quiet:
            yield from self._by_its_own_law(session, noise, [farthest, canaries[-1]])
        for departure in [] if quiet else wrong:
            certain = departure.certain and self._alone
            yield self._remark("BROKEN" if certain else "SUSPECT", departure.text)
        yield self._remark(
            "LOOKED",
            f"{len(canaries)} canaries over {session.rounds} rounds, {len(noise.values)} sessions of noise alone: "
            f"at most {best.point / math.sqrt(best.rounds):.3g} of {self._mu:.3g} a release; "
            f"{self._mu * MARGIN * best.blur:.3g} along the same way would have shown",
            best.of_one,
            self._mu,
        )

    @property
    def _alone(self) -> bool:
        """Whether nothing else in the stack may have changed the noise after it was added."""
        return len(self.federation.stack.using("publish").defences) < 2

    def _confirm(self, session: Session, canary: Canary) -> Iterator[Remark]:
        """Fresh sessions of both worlds, judged by a learned rule."""
        yield from self._judged(joint.play(session, canary, 10**6), session.rounds, f"canary {canary.name}")

    def _by_its_own_law(self, session: Session, noise: Noise, canaries: list[Canary]) -> Iterator[Remark]:
        """What noise that departs from its law lets through: releases without any, and its likelihood ratio."""
        for canary in canaries:
            if told := likelihood.bare_sessions(session, canary, noise, 2 * 10**6):
                bare, all_ = told
                text = f"a release leaves without noise in {bare} of {all_} sessions, and shows canary {canary.name}"
                yield self._remark("BROKEN", text, math.inf, self._mu)
                return
            scores = likelihood.scores(session, canary, noise, 2 * 10**6)
            yield from self._judged(scores, session.rounds, f"canary {canary.name}, by the noise's own law")

    def _judged(self, scores: tuple[FloatArray, FloatArray], rounds: int, how: str) -> Iterator[Remark]:
        """Whether scores of fresh sessions of both worlds refute the claim."""
        pure = [e.epsilon for e in self.claim.events if isinstance(e, Pure)]
        rng = np.random.default_rng(0)  # breaks ties
        if pure:
            low = lower_bound_from_scores(*scores, 0.0, 1 - ALPHA, rng=rng).low / rounds
            promised = sum(pure)
        else:
            low = mu_bound_from_scores(*scores, 1 - ALPHA, rng=rng).low / math.sqrt(rounds)
            promised = self._mu
        if low > promised * MARGIN:
            yield self._remark(
                "BROKEN",
                f"{'epsilon' if pure else 'mu'} of one release >= {low:.3g}, above the promised {promised:.3g}: "
                f"{rounds} rounds in a row, {how}, {sum(map(len, scores))} fresh sessions",
                low,
                promised,
            )

    def _seeded(self, session: ReleaseSession | PublishSession | RecordSession) -> Iterator[Remark]:
        """Secret noise must not follow from the study's seed."""
        if session.federation.noise == "seeded":
            return
        first, again = (session.see(None, 1, quiet=True) for _ in range(2))
        if any(torch.equal(a, b) and bool(a.any()) for a, b in zip(first, again, strict=True)):
            yield self._remark(
                "BROKEN", "noise follows from the seed, which anybody may know, where it is to be secret"
            )

    def _bare_figures(self, session: ReleaseSession) -> Iterator[Remark]:
        one, zero = (steady(torch.ones(session.values), length, session.rounds) for length in (1000.0, 1.0))
        first, again, other = (session.reports(x, s)[0][0].metrics for x, s in ((one, 1), (one, 2), (zero, 1)))
        for figure, value in first.items():
            if again.get(figure) == value and other.get(figure) != value:
                yield self._remark("BROKEN", f"the figure {figure!r} leaves with the report, without noise")


def _noise(session: Session, count: int, away: bool = False) -> Noise:
    """Noise alone; ``away``: the target is not even there."""
    away = away or isinstance(session, RecordSession)
    nothing = None if away else torch.zeros(session.rounds, session.values)
    seen = [session.see(nothing, 10_000 + i, quiet=True).double().numpy() for i in range(count)]
    return Noise(np.stack(seen), alike=False)


def _zero(one: torch.Tensor, adjacency: Adjacency) -> torch.Tensor | None:
    """The neighbour's input: the opposite, nothing from somebody who is not there (None), or zeros that count."""
    if adjacency is Adjacency.REPLACE_ONE:
        return -one
    return None if adjacency is Adjacency.ADD_REMOVE else torch.zeros_like(one)


def _canaries(session: Session, noise: Noise, layout: Layout, adjacency: Adjacency) -> Iterator[Canary]:
    """Many lengths in one direction, a few lengths in many directions and along what has least noise."""
    generator, rounds, size = torch.Generator().manual_seed(3), session.rounds, session.values
    ones = torch.ones(size)
    directions = {f"along entry {e.name}": torch.zeros(size) for e in layout.entries}
    for e in layout.entries:
        directions[f"along entry {e.name}"][layout.slices[e.name]] = 1.0
    directions |= {f"at random {i}": torch.randn(size, generator=generator) for i in range(3)}
    for i in (0, size - 1):
        directions[f"in value {i}"] = torch.zeros(size).index_fill_(0, torch.tensor(i), 1.0)
    weak = torch.from_numpy(noise.weakest()[:, :size]).float()
    turns = torch.tensor([(-1.0) ** k for k in range(rounds)])[:, None]
    made = [(f"{name}, length {n:g}", steady(d, n, rounds)) for name, d in directions.items() for n in sizes(False)]
    made += [(f"where noise is least, length {n:g}", rowwise(weak, n)) for n in sizes(False)]
    made += [(f"with turning sign, length {n:g}", steady(ones, n, rounds) * turns) for n in sizes(False)]
    made += [(f"everywhere, length {n:.3g}", steady(ones, n, rounds)) for n in sizes(True)]
    for name, one in made:
        yield Canary(name, _zero(one, adjacency), one)


def _records(session: RecordSession) -> Iterator[Canary]:
    generator = torch.Generator().manual_seed(4)
    for place in range(2):
        across = torch.randn(session.values, generator=generator)
        for length in (0.01, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1000.0):
            yield Canary(f"record {place}, length {length:g}", None, session.record(across, length)[None])


def _in_scale(bench: Federation) -> Federation:
    """With a learning rate at which noise moves weights by a tenth: not lost in rounding, not beyond the slope."""
    seen = RecordSession(bench).see(None, 0, quiet=True)
    size = float(seen.abs().max())
    return replace(bench, plan=replace(bench.plan, learning_rate=0.1 / size)) if size > 0 else bench
