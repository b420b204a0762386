"""A stack: in which order hooks act, what it says of itself, and where its randomness comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import tiny
from leakline.defences import (
    Defence,
    DpSgd,
    FedPer,
    GaussianNoise,
    GlobalDP,
    Intermediaries,
    LdpSgd,
    MetricPrivacy,
    PercentileGaussian,
)
from leakline.errors import StackError
from leakline.messages import Order, Receipt
from leakline.privacy import NoClaim
from leakline.settings import Cohort, Engine, Judging
from leakline.stack import Stack


@dataclass(frozen=True)
class Marks(Defence):
    """Writes its letter down wherever it acts."""

    letter: str
    at: str = "aggregate"  # type: ignore[assignment]

    def _mark(self, turn):
        turn.memory["seen"] = turn.memory.get("seen", "") + self.letter
        turn.facts[f"{len(turn.facts)}{self.letter}"] = 0.0

    def brief(self, notes, turn):
        self._mark(turn)
        return {**notes, self.letter: float(len(notes))}

    def release(self, update, turn):
        self._mark(turn)
        return update.with_delta(update.delta.vector * 2 + ord(self.letter))

    def admit(self, updates, turn):
        for update in updates:
            self._mark(turn)
            yield update

    def publish(self, change, cohort, turn):
        self._mark(turn)
        return change

    def claim(self, federation, facts=()):
        return NoClaim("a test")


AB = Stack((Marks("a"), Marks("b")))


def turns(stack: Stack, party: str = "server", facts: dict[str, float] | None = None):
    return stack.turns(3, party, {}, seed=7, secret=False, facts=facts)


def order_of(facts: dict[str, float]) -> str:
    return "".join(name[-1] for name in facts)


def test_release_brief_and_admit_run_first_to_last_and_publish_last_to_first():
    update, facts = tiny.update(torch.ones(3)), {}
    assert AB.brief(turns(AB, facts=facts)) == {"a": 0.0, "b": 1.0}
    released = AB.release(update, turns(AB))
    assert torch.equal(released.delta.vector, (torch.ones(3) * 2 + ord("a")) * 2 + ord("b"))
    assert list(AB.admit(iter([update, update]), turns(AB, facts=facts))) == [update, update]
    AB.publish(update.delta, "aggregate", [Receipt("a", 1, 1)], turns(AB, facts=facts))
    assert order_of(facts) == "ab" + "abab" + "ba"


def test_each_stage_of_publish_is_that_of_its_own_defences():
    stack, facts = Stack((Marks("a", "model"), Marks("b"), Marks("c", "model"))), {}
    change = tiny.update(torch.ones(3)).delta
    stack.publish(change, "aggregate", [], turns(stack, facts=facts))
    assert order_of(facts) == "b"
    stack.publish(change, "model", [], turns(stack, facts=facts))
    assert order_of(facts) == "bca"
    assert [str(stack.publishing(at)) for at in ("aggregate", "model")] == ["Marks", "Marks + Marks"]


def test_every_defence_has_a_memory_and_an_address_of_its_own():
    memory: dict = {}
    stack = Stack((GlobalDP(1.0, 1.0), Marks("a"), GlobalDP(2.0, 1.0)))
    first, middle, last = stack.turns(3, "server", memory, seed=7, secret=False)
    assert [first.purpose, middle.purpose, last.purpose] == ["GlobalDP-0", "Marks-0", "GlobalDP-1"]
    alone = Stack((Marks("a"),)).turns(3, "server", {}, seed=7, secret=False)[0]
    assert torch.equal(alone.noise().normal(4), middle.noise().normal(4))  # its neighbours do not shift it
    middle.memory["kept"] = 1
    assert memory == {"0": {}, "1": {"kept": 1}, "2": {}}


def test_an_empty_stack_does_nothing_and_promises_nothing():
    stack, update = Stack(), tiny.update(torch.ones(3))
    assert not stack
    assert str(stack) == "no defence"
    assert stack.brief(()) == {}
    assert stack.release(update, ()) is update
    assert stack.split(5, Order("a", 0, update.delta), ()) is None
    assert stack.owner is stack.gradient(torch.nn.functional.mse_loss, ()) is None
    assert (stack.fewest, stack.sends({}), stack.loudness, stack.steady, stack.law) == (1, 1, 0.0, True, None)
    assert isinstance(stack.claims(tiny.federation())["none"], NoClaim)


def test_what_a_stack_says_of_itself():
    stack = Stack((FedPer(last=1), Intermediaries(0.5, 1.0, parts=4), PercentileGaussian(2.0)))
    assert stack.sends({"parts": 4.0}) == 4
    assert stack.loudness == 2.0
    assert stack.steady
    assert str(stack.using("split")) == "Intermediaries"
    assert str(stack.using("kept", "release")) == "FedPer + PercentileGaussian"
    assert not Stack((replace(stack.defences[1], parts="paper"),)).steady
    assert Stack((MetricPrivacy(1.0, 1.0),)).fewest == 2
    assert GaussianNoise(0.3).loudness == 0.3
    sampled = DpSgd(1.0, 1.0, rate=0.5)
    assert Stack((sampled,)).unsampled() == (replace(sampled, rate=0.0),)


def test_a_report_on_the_sphere_has_a_law_only_where_nothing_else_touches_it():
    report = LdpSgd(2.0, clip=0.5)
    assert Stack((report,)).law == report
    assert Stack((report, GaussianNoise())).law is None
    assert Stack((GaussianNoise(),)).law is None
    assert report.hooks == ("release",)
    assert replace(report, radius=1.0).hooks == ("release", "publish")


def test_what_cannot_be_stacked_is_refused():
    with pytest.raises(StackError, match="DpSgd and DpSgd both want to form the gradient"):
        Stack((DpSgd(1.0, 1.0), DpSgd(1.0, 1.0)))
    with pytest.raises(ValueError, match="a defence is needed"):
        Stack(("global-dp",))  # type: ignore[arg-type]
    everything = Stack((FedPer(["0.*"]), FedPer(["2.*"])))
    with pytest.raises(StackError, match="every layer stays"):
        everything.kept(tiny.federation(model=tiny.perceptron).layout)


# --- settings ----------------------------------------------------------------------------------------------------


def test_a_setting_is_reached_by_its_bare_name_wherever_it_lies():
    base = tiny.federation()
    changed = base.but(sampling="poisson", participation=0.5, patience=4, together="off", rounds=9)
    assert changed.cohort == Cohort("poisson", 0.5)
    assert changed.judging == Judging(patience=4)
    assert changed.engine == Engine("off")
    assert changed.rounds == 9
    assert base.cohort == Cohort()
    assert base.but(cohort=Cohort("fixed", 0.4), participation=0.2).cohort == Cohort("fixed", 0.2)
    with pytest.raises(TypeError, match="nonsense"):
        base.but(nonsense=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds must be at least 1: 0"),
        ({"participation": 0.0}, "participation must be above 0"),
        ({"participation": 1.5}, "participation must be at most 1"),
        ({"patience": -1}, "patience must be at least 0"),
        ({"min_clients": 0}, "min_clients must be at least 1"),
        ({"sampling": "possion"}, "sampling must be 'full' or 'poisson' or 'fixed': 'possion'"),
        ({"noise": "loud"}, "noise must be 'secret' or 'seeded'"),
        ({"together": "on"}, "together must be"),
    ],
)
def test_a_setting_beyond_its_limits_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        tiny.federation(**settings)
