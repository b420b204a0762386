"""Images out of recorded updates: found where they can be, refused where too little is known."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from leakline.attacks import MENU, GradientInversion
from leakline.attacks.inversion.variants import Method
from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.errors import DataError, LeaklineError, StackError
from leakline.federation import Federation, federate
from leakline.readings import Reading
from leakline.recordings.attacks import (
    attack_for,
    attack_recording,
    imported,
    inversion,
    known_plan,
    load_truth,
)
from leakline.recordings.inputs import Inputs, inputs_of
from leakline.recordings.lab import FromOne, Target, lab_over
from leakline.recordings.recorder import Recorder
from leakline.recordings.recording import Recording
from leakline.recordings.records import Known, known_from, labelled
from leakline.recordings.writing import write_round

SHAPE = (1, 8, 8)
PLAN = Plan(epochs=1, batch=4, learning_rate=0.1)


def build() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))


def images(n: int) -> Data:
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    x = torch.tensor(pixels[:n] / 16, dtype=torch.float32).reshape(-1, *SHAPE)
    return Data(x, torch.tensor(y[:n], dtype=torch.int64))


def recorded(path: Path, defences: Any = (), n: int = 2, **changes: Any) -> Recording:
    clients = (Client("a", images(n)), Client("b", images(n + 1)))
    task = Task(clients, None, None, tuple("0123456789"))
    fed = Federation(task, build, PLAN, rounds=1, defences=defences, noise="seeded")
    recorder = Recorder(path, **changes)
    recorder.open(fed.wire)
    for one in federate(fed):
        recorder.write(one)
    return Recording(path)


TARGET = Target(build, SHAPE, PLAN)


def attacked(recording: Recording, iterations: int = 400, **asked: Any) -> list[Reading]:
    lab = lab_over(recording, TARGET, **asked)
    return attack_recording(lab, inversion(lab, {"iterations": iterations}))


def test_a_small_batch_is_found_exactly_and_noise_hides_it(tmp_path):
    from leakline.defences import PercentileGaussian

    truth = {"a": images(2).x}
    plain = recorded(tmp_path / "plain")
    found = {r.measure: r for r in attacked(plain, clients=["a"], truth=truth) if r.client}
    assert found["ssim"].value > 0.99
    assert found["ssim"].chance is not None
    assert found["ssim"].chance < 0.1
    assert found["psnr"].value > 40
    assert found["rdlv"].value > 1
    assert (found["ssim"].round, found["ssim"].client) == (0, "a")
    kept = plain.run.attacks()
    assert [line["measure"] for line in kept] == ["ssim", "psnr", "rdlv", "ssim", "rdlv"]  # of "a", and over all
    (picture,) = (tmp_path / "plain" / "media").glob("gradient-inversion-*/round-0000/a/strip.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    noisy = recorded(tmp_path / "noisy", (PercentileGaussian(30.0),))
    hidden = {r.measure: r for r in attacked(noisy, clients=["a"], truth=truth) if r.client}
    assert hidden["ssim"].value < 0.5


def test_without_truth_there_is_an_objective_and_a_picture(tmp_path):
    recording = recorded(tmp_path)
    found = attacked(recording, 20)
    assert [(r.client, r.measure) for r in found] == [("a", "objective"), ("b", "objective")]
    assert "labels found: 0, 1" in found[0].note
    assert found[0].about["labels"] == "0, 1"
    folder = tmp_path / "media"
    assert {p.parent.name for p in folder.rglob("*.png")} == {"a", "b"}
    assert [np.load(p).shape for p in sorted(folder.rglob("*.npy"))] == [(2, *SHAPE), (3, *SHAPE)]
    attacked(recording, 20)  # the same again: nothing new
    assert len(recording.run.attacks()) == 2
    attacked(recording, 21, clients=["a"])
    assert len(recording.run.attacks()) == 3


def test_it_is_the_attack_of_the_studies_on_the_same_turn(tmp_path):
    from leakline.study.lab import Lab, examine
    from leakline.study.store import Store
    from leakline.study.train import train_run

    recording = recorded(tmp_path / "recording")
    bench = lab_over(recording, TARGET)
    attack = inversion(bench, {"iterations": 30})
    task = Task((Client("a", images(2)), Client("b", images(3))), None, None, tuple("0123456789"))
    federation = Federation(task, build, PLAN, rounds=1, noise="seeded")
    store = Store(tmp_path / "store")
    trained = Lab(federation, store, train_run(store, federation, workers=1, keep=attack.wants(federation)), 1)
    examine(attack, trained)
    attack_recording(bench, attack)
    for client in "ab":
        (ours,) = store.root.rglob(f"round-0000/{client}/reconstruction.npy")
        (theirs,) = recording.path.rglob(f"round-0000/{client}/reconstruction.npy")
        assert np.array_equal(np.load(ours), np.load(theirs))


@pytest.mark.parametrize("name", sorted(MENU.keys() - {"gradient-inversion"}))
def test_what_needs_more_than_was_recorded_is_refused(name, tmp_path):
    bench = lab_over(recorded(tmp_path), TARGET)
    settings = {"attribute-inference": {"trait": "gender"}}.get(name, {})
    with pytest.raises(LeaklineError) as refusal:
        attack_recording(bench, attack_for(name, bench, settings), name)
    assert "cannot work from a recording: " in refusal.value.what
    assert len(str(refusal.value).splitlines()) == 3
    assert not (tmp_path / "attacks.jsonl").exists()


def test_a_recording_gives_what_it_holds_and_refuses_the_rest(tmp_path):
    recording = recorded(tmp_path)
    bench = lab_over(recording, TARGET)
    sent, updates = bench.kept(0)
    assert (sent.layout, [u.client for u in updates]) == (recording.layout(), ["a", "b"])
    assert (bench.kept(5), bench.cohorts()) == (None, [("a", "b")])
    assert torch.equal(bench.final_weights().vector, recording.round(0).result.vector)
    data = bench.federation.clients["b"].train
    assert (len(data), data.x.shape) == (3, (3, *SHAPE))
    for needs, ask in (
        ("clients' data", lambda: data.inputs(slice(None))),
        ("clients' data", lambda: data.take([0])),
        ("clients' data", data.labels),
        ("clients' data", data.fingerprint),
        ("what clients keep for themselves", bench.memories),
        ("answer chosen weights", lambda: bench.probe(sent, 0)),
        ("defences", bench.federation.claims),
        ("other federations trained for comparison", lambda: bench.variant(bench.federation)),
    ):
        with pytest.raises(StackError, match=f"it needs .*{needs}, which a recording does not hold"):
            ask()


def test_schedules_follow_an_engine_that_counts_from_one(tmp_path):
    plan = Plan(epochs=1, batch=4, learning_rate=1.0, decay_every=2)
    recording = recorded(tmp_path, engine="flower 1.41.0")
    theirs = lab_over(recording, Target(build, SHAPE, plan)).federation.plan
    assert isinstance(theirs, FromOne)
    assert [theirs.rate(i) for i in range(1, 6)] == [plan.rate(i) for i in range(5)]


def test_what_does_not_fit_is_said(tmp_path):
    recording = recorded(tmp_path, n=2)

    def run(most_images: int = 16, truth: Any = None, settings: Any = None, **changes: Any) -> Any:
        bench = lab_over(recording, replace(TARGET, **changes), clients=["a"], truth=truth)
        return attack_recording(bench, inversion(bench, settings or {"iterations": 5}, most_images))

    with pytest.raises(StackError, match=r"another model: 3.weight was recorded with shape \(10, 512\)"):
        run(build=lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 9)))
    with pytest.raises(StackError, match="the model does not have it"):
        run(build=lambda: nn.Linear(3, 3))
    with pytest.raises(StackError, match="the model is a int"):
        run(build=lambda: 3)
    with pytest.raises(StackError, match="does not take images of shape"):
        run(shape=(1, 9, 9))
    with pytest.raises(LeaklineError, match="a has 2 images, more than most_images = 1"):
        run(most_images=1)
    with pytest.raises(DataError, match="the truth has"):
        run(truth={"a": torch.zeros(3, *SHAPE)})
    with pytest.raises(LeaklineError, match='itterations - unknown key; did you mean "iterations"'):
        run(settings={"itterations": 1})
    with pytest.raises(LeaklineError, match="variant - .*not 'magic'"):
        run(settings={"variant": "magic"})
    with pytest.raises(LeaklineError, match='there is no "magic"'):
        attack_for("magic", lab_over(recording, TARGET), {})
    with pytest.raises(LeaklineError, match="cannot be imported"):
        imported("nowhere.at.all:Net")
    with pytest.raises(LeaklineError, match="is not a function"):
        imported("leakline.recordings.format:VERSION")
    with pytest.raises(LeaklineError, match="round 7 is not in this recording"):
        attacked(recording, rounds=[7])
    with pytest.raises(LeaklineError, match="round 0 holds no update of zoe"):
        attacked(recording, clients=["zoe"])


def test_variants_and_settings_meet(tmp_path):
    bench = lab_over(recorded(tmp_path), TARGET)

    def method(**settings: Any) -> Method:
        return inversion(bench, settings).method

    mine = method(variant="geiping", iterations=7, variation=0.5)
    assert (mine.terms.distance, mine.terms.variation) == ("cosine", 0.5)
    assert (mine.search.iterations, mine.search.signed, mine.statistics) == (7, True, "none")
    assert method(labels="unknown").labels == "trainable"
    assert method(variant="grad+bn").search.levels != (1.0,)
    assert method().search.levels == (1.0,)
    assert method().terms.statistics == 0  # the model has none
    assert method(levels=[0.5, 1.0]).search.levels == (0.5, 1.0)
    with pytest.raises(LeaklineError, match="labels - .*not 'known'"):
        method(labels="known")
    with pytest.raises(ValueError, match="there is no setting 'terms'"):
        GradientInversion(settings={"terms": 3})


def test_the_plan_is_what_was_recorded_and_what_is_added(tmp_path):
    recording = recorded(tmp_path, plan={"learning_rate": 0.1, "batch": 4})
    with pytest.raises(LeaklineError, match=r"does not say the epochs.*\n.*\n.*--epochs"):
        known_plan(recording, {"epochs": None})
    assert known_plan(recording, {"epochs": 2, "batch": 8}) == Plan(epochs=2, batch=8, learning_rate=0.1)


def test_truth_is_read_from_a_file_and_hostile_ones_are_refused(tmp_path):
    np.savez(tmp_path / "t.npz", a=np.full((1, 1, 2, 2), 255, np.uint8), b=np.zeros((1, 1, 2, 2)))
    found = load_truth(tmp_path / "t.npz")
    assert found["a"].max() == 1
    np.savez(tmp_path / "bad.npz", a=np.zeros(3))
    with pytest.raises(DataError, match="a is float64 of shape"):
        load_truth(tmp_path / "bad.npz")
    np.savez(tmp_path / "object.npz", a=np.array([{}], dtype=object))
    with pytest.raises(DataError):
        load_truth(tmp_path / "object.npz")


def test_pictures_of_grey_and_of_colour(tmp_path):
    from PIL import Image

    from leakline.attacks.inversion.media import unscored
    from leakline.study import artefacts

    made = [unscored("grey", 0, torch.rand(3, 1, 8, 8)), unscored("colour", 0, torch.rand(2, 3, 100, 90))]
    artefacts.write(tmp_path, made)
    for name, mode, size in (("grey", "L", (8, 24)), ("colour", "RGB", (90, 200))):
        with Image.open(tmp_path / "round-0000" / name / "strip.png") as picture:
            assert (picture.mode, picture.size) == (mode, size)


def test_the_command(leakline, tmp_path):
    recorded(tmp_path / "rec")
    (tmp_path / "recorded_net.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential("
        "nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))\n"
    )
    sys.path.insert(0, str(tmp_path))

    def call(*words: str) -> tuple[int, str, str]:
        return leakline("attack", "rec", "--model", "recorded_net:build", *words)

    plan = ("--learning-rate", "0.1", "--batch", "4", "--epochs", "1")
    code, out, _ = call("--shape", "1,8,8", *plan, "--client", "a", "-s", "iterations=10", "--json")
    assert code == 0
    assert json.loads(out)[0]["measure"] == "objective"
    for words, said in (
        (("--shape", "8", *plan), "cannot read the shape"),
        (("--shape", "1,8,8"), "does not say the learning_rate, batch, epochs"),
        (("--shape", "1,8,8", *plan, "-s", "x"), "cannot read 'x'"),
        (("--shape", "1,8,8", *plan, "-s", "iterations=0"), "iterations must be at least 1"),
        (("--shape", "1,8,8", *plan, "--use", "membership-inference"), "cannot work from a recording"),
        (("--shape", "1,8,8", *plan, "--use", "magic"), 'there is no "magic"'),
        (("--shape", "1,8,8", *plan, "-s", "itterations=1"), "itterations"),
        (("--shape", "1,8,8", *plan, "--client", "zoe"), "no update of zoe"),
    ):
        code, _, err = call(*words)
        assert (code, said in err) == (2, True), err


# --- what inputs look like ---------------------------------------------------------------------------------------


def normalised(path: Path) -> Recording:
    """An app that feeds its network (x - 0.5) / 0.5, as most tutorials do."""
    data = images(2)
    task = Task((Client("a", Data(data.x * 2 - 1, data.y)),), None, None, tuple("0123456789"))
    fed = Federation(task, build, PLAN, rounds=1)
    recorder = Recorder(path)
    recorder.open(fed.wire)
    for one in federate(fed):
        recorder.write(one)
    return Recording(path)


def test_pictures_of_a_network_with_normalised_inputs_are_found_once_it_is_known(tmp_path):
    recording, truth = normalised(tmp_path), {"a": images(2).x}

    def psnr(inputs: Inputs) -> Reading:
        lab = lab_over(recording, replace(TARGET, inputs=inputs), truth=truth)
        readings = attack_recording(lab, inversion(lab, {"iterations": 250}))
        return next(r for r in readings if r.measure == "psnr")

    blind, told = psnr(Inputs()), psnr(Inputs.spanning([-1.0], [1.0]))
    assert told.value > 40
    assert blind.value < 25
    assert "inputs in [-1, 1] (given)" in told.note
    assert "inputs in [0, 1] (assumed)" in blind.note
    assert len({line["attack"] for line in recording.run.attacks()}) == 2  # two attacks, not one and its repetition


def test_ways_to_say_what_inputs_look_like(tmp_path):
    assert inputs_of([0.5], [0.5], None, None) == Inputs((0.5,), (0.5,), "given")
    assert inputs_of(None, None, [-1, 1], None) == inputs_of([0.5], [0.5], None, None)
    x = np.random.default_rng(0).uniform(size=(50, 3, 8, 8)).astype(np.float32)
    x[0], x[1] = 0, 1
    mean, std = np.array([0.49, 0.48, 0.45]), np.array([0.2, 0.25, 0.3])
    public = (x - mean[:, None, None]) / std[:, None, None]
    np.savez(tmp_path / "public.npz", a=public[:25].astype(np.float32), b=public[25:].astype(np.float32))
    found = inputs_of(None, None, None, tmp_path / "public.npz")
    np.testing.assert_allclose(found.mean, mean, atol=1e-6)
    np.testing.assert_allclose(found.std, std, atol=1e-6)
    assert "public images" in str(found)
    model = found.before(nn.Identity())
    np.testing.assert_allclose(model(torch.tensor(x)).numpy(), public, atol=1e-5)
    assert inputs_of(None, None, None, None).plain


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (([0.5], None, None, None), "a mean and a std are needed"),
        (([0.5], [0.5, 0.5], None, None), "as many of each"),
        (([0.5], [0.0], None, None), "std not 0"),
        (([0.5], [float("nan")], None, None), "finite"),
        (([0.5], [0.5], [-1, 1], None), "say the same thing"),
        ((None, None, [1], None), "two ends"),
        ((None, None, [1, -1], None), "from a lower to a higher"),
    ],
)
def test_inputs_that_cannot_be(given, said):
    with pytest.raises((LeaklineError, ValueError), match=said):
        inputs_of(*given)


def test_means_must_fit_the_channels(tmp_path):
    with pytest.raises(LeaklineError, match="3 means for images of 1 channels"):
        lab_over(recorded(tmp_path), replace(TARGET, inputs=Inputs((0.5,) * 3, (0.5,) * 3)))


# --- attacks on what is known beside a recording -----------------------------------------------------------------


def digits(first: int, count: int) -> Data:
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    rows = slice(first, first + count)
    x = torch.tensor(pixels[rows] / 16, dtype=torch.float32).reshape(-1, *SHAPE)
    return Data(x, torch.tensor(y[rows], dtype=torch.int64))


LOCAL = Plan(epochs=1, batch=0, learning_rate=0.1)


def of_clients(path: Path, *clients: Client, rounds: int = 1, plan: Plan = LOCAL) -> Recording:
    fed = Federation(Task(clients, None, None, tuple("0123456789")), build, plan, rounds=rounds)
    recorder = Recorder(path, plan={"epochs": plan.epochs, "batch": plan.batch, "learning_rate": plan.learning_rate})
    recorder.open(fed.wire)
    for one in federate(fed):
        recorder.write(one)
    return Recording(path)


def test_known_members_are_told_from_others_by_an_overfitted_model(tmp_path):
    """40 digits, learnt by heart: their losses are below those of 40 others nearly everywhere."""
    plan = Plan(epochs=10, batch=8, learning_rate=0.5)
    recording = of_clients(tmp_path, Client("a", digits(0, 20)), Client("b", digits(20, 20)), rounds=8, plan=plan)
    known = Known(digits(0, 40), digits(900, 40))
    lab = lab_over(recording, Target(build, SHAPE, Plan()), known=known)
    readings = attack_recording(lab, attack_for("loss-threshold", lab, {}), "loss-threshold")
    auc = next(r for r in readings if r.measure == "auc")
    assert auc.value > 0.7
    assert auc.chance == 0.5
    twice = lab_over(recording, Target(build, SHAPE, Plan()), known=Known(digits(900, 40), digits(940, 40)))
    (null,) = (
        r
        for r in attack_recording(twice, attack_for("loss-threshold", twice, {}), "loss-threshold")
        if r.measure == "auc"
    )
    assert null.low < 0.5 < null.high  # nobody was a member; the interval is for 95 %
    assert len({line["attack"] for line in recording.run.attacks()}) == 2


def test_a_clients_case_mix_is_guessed_and_scored_where_it_is_known(tmp_path):
    """A client of zeros and ones alone, from the last layer of one step."""
    some = digits(0, 400)
    mine = some.take(np.flatnonzero(some.labels() <= 1)[:30])
    recording = of_clients(tmp_path, Client("a", mine), Client("b", digits(400, 30)))
    public = digits(600, 400)

    def attacked_with(known: Known) -> list[Reading]:
        lab = lab_over(recording, Target(build, SHAPE, LOCAL), clients=["a"], known=known)
        return attack_recording(lab, attack_for("label-inference", lab, {}), "label-inference")

    guess = {r.about["class"]: r for r in attacked_with(Known(public=public))}
    true = np.bincount(mine.labels(), minlength=10) / len(mine)
    assert sum(r.value for r in guess.values()) == pytest.approx(1, abs=0.02)
    assert guess["0"].value + guess["1"].value > 0.85
    assert all(
        r.low <= true[int(name)] + 0.5 / 30 and true[int(name)] - 0.5 / 30 <= r.high for name, r in guess.items()
    )
    assert guess["5"].chance == pytest.approx(0.1, abs=0.03)
    scored = attacked_with(Known(public=public, labels={"a": mine.y}))
    assert next(r for r in scored if r.measure == "shares-right").value > 0.85
    with pytest.raises(DataError, match="30 examples, and 2 labels are given"):
        attacked_with(Known(public=public, labels={"a": mine.y[:2]}))


def test_what_such_attacks_lack_is_said_with_the_option_to_give(tmp_path):
    lab = lab_over(
        of_clients(tmp_path, Client("a", digits(0, 10)), Client("b", digits(9, 9))), Target(build, SHAPE, LOCAL)
    )
    for name, option in (("loss-threshold", "--members"), ("label-inference", "--public")):
        with pytest.raises(StackError, match=option):
            attack_recording(lab, attack_for(name, lab, {}), name)


def test_records_are_read_as_the_network_takes_them_and_wrong_ones_refused(tmp_path):
    x = np.random.default_rng(0).uniform(size=(6, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "r.npz", x=x * 2 - 1, y=np.arange(6))
    found = labelled(tmp_path / "r.npz", Inputs((0.5,), (0.5,), "given"))
    np.testing.assert_allclose(found.x.numpy(), x, atol=1e-6)
    for arrays, said in (
        ({"x": x}, "no x and y"),
        ({"x": x, "y": np.zeros(5, int)}, r"y int64 of shape \(5,\)"),
        ({"x": x[:, 0], "y": np.arange(6)}, "x is float32"),
        ({"x": x, "y": -np.arange(6)}, "count from 0"),
        ({"x": x * np.nan, "y": np.arange(6)}, "finite"),
        ({"x": x[:0], "y": np.arange(0)}, "of shape"),
    ):
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(DataError, match=said):
            labelled(tmp_path / "bad.npz", Inputs())
    with pytest.raises(LeaklineError, match="held against each other"):
        known_from(tmp_path / "r.npz", None, None, None, Inputs())
    np.savez(tmp_path / "labels.npz", a=np.zeros((2, 2), int))
    with pytest.raises(DataError, match="a is int64"):
        known_from(None, None, None, tmp_path / "labels.npz", Inputs())
    assert known_from(None, None, tmp_path / "r.npz", None, Inputs()).classes == tuple("012345")


class SingleLayer(nn.Linear):
    """A network that is one layer itself: its weights are called weight and bias."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flatten(1))


def test_a_network_that_is_a_single_layer(tmp_path):
    image = digits(5, 1)
    model = SingleLayer()
    before = {name: value.detach().clone().numpy() for name, value in model.named_parameters()}
    nn.functional.cross_entropy(model(image.x), image.y).backward()
    change = {name: -0.1 * value.grad.numpy() for name, value in model.named_parameters()}
    write_round(tmp_path, before, {"a": change}, {name: before[name] + change[name] for name in before})
    recording = Recording(tmp_path)
    lab = lab_over(recording, Target(SingleLayer, SHAPE, LOCAL), truth={"a": image.x})
    readings = attack_recording(lab, inversion(lab, {"iterations": 20}))
    assert next(r for r in readings if r.measure == "ssim" and r.client).value > 0.999
    known = Known(digits(5, 1), digits(6, 1))
    lab = lab_over(recording, Target(SingleLayer, SHAPE, LOCAL), known=known)
    assert attack_recording(lab, attack_for("loss-threshold", lab, {}), "loss-threshold")
