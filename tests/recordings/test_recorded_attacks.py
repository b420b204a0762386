"""Images out of recorded updates: found where they can be, refused where too little is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.errors import DataError, LeaklineError, StackError
from leakline.federation import Federation, federate
from leakline.recordings.attacks import (
    Inversion,
    Target,
    attack_recording,
    gallery,
    imported,
    known_plan,
    load_truth,
)
from leakline.recordings.recording import Recorder, Recording

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


def target(**changes: Any) -> Target:
    return Target(**({"build": build, "shape": SHAPE, "plan": PLAN} | changes))


def attack(**settings: Any) -> Inversion:
    return Inversion.of({"iterations": 400, **settings}, SHAPE)


def test_a_small_batch_is_found_exactly_and_noise_hides_it(tmp_path):
    from leakline.defences import PercentileGaussian

    truth = {"a": images(2).x}
    plain = recorded(tmp_path / "plain")
    found = {r.measure: r for r in attack_recording(plain, attack(), target(), clients=["a"], truth=truth)}
    assert found["ssim"].value > 0.99
    assert found["ssim"].chance is not None
    assert found["ssim"].chance < 0.1
    assert found["rmse"].value < 0.01
    assert "labels found: 0, 1" in found["objective"].note
    assert (found["ssim"].round, found["ssim"].client) == (0, "a")
    kept = plain.run.attacks()
    assert [line["measure"] for line in kept] == ["objective", "rmse", "psnr", "ssim"]
    (picture,) = (tmp_path / "plain" / "media").glob("round-0000-a-*.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    noisy = recorded(tmp_path / "noisy", (PercentileGaussian(30.0),))
    hidden = {r.measure: r for r in attack_recording(noisy, attack(), target(), clients=["a"], truth=truth)}
    assert hidden["ssim"].value < 0.5


def test_without_truth_there_is_an_objective_and_a_picture(tmp_path):
    recording = recorded(tmp_path)
    found = attack_recording(recording, attack(iterations=20), target())
    assert [(r.client, r.measure) for r in found] == [("a", "objective"), ("b", "objective")]
    assert len(list((tmp_path / "media").glob("*.png"))) == 2
    attack_recording(recording, attack(iterations=20), target())  # the same again: nothing new
    assert len(recording.run.attacks()) == 2
    attack_recording(recording, attack(iterations=21), target(), clients=["a"])
    assert len(recording.run.attacks()) == 3


def test_what_does_not_fit_is_said(tmp_path):
    recording = recorded(tmp_path, n=2)

    def run(**changes: Any) -> Any:
        truth = changes.pop("truth", None)
        return attack_recording(recording, attack(iterations=5), target(**changes), clients=["a"], truth=truth)

    with pytest.raises(StackError, match=r"another model: 3.weight was recorded with shape \(10, 512\)"):
        run(build=lambda: nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 9)))
    with pytest.raises(StackError, match="the model does not have it"):
        run(build=lambda: nn.Linear(3, 3))
    with pytest.raises(StackError, match="the model is a int"):
        run(build=lambda: 3)
    with pytest.raises(StackError, match="does not take images of shape"):
        run(shape=(1, 9, 9))
    with pytest.raises(StackError, match="1 are the bound"):
        run(most_images=1)
    with pytest.raises(DataError, match="the prior has shape"):
        run(prior=torch.zeros(1, 1, 4, 4))
    with pytest.raises(DataError, match="the truth has"):
        run(truth={"a": torch.zeros(3, *SHAPE)})
    with pytest.raises(LeaklineError, match="no setting itterations"):
        Inversion.of({"itterations": 1})
    with pytest.raises(LeaklineError, match="no variant 'magic'"):
        Inversion.of({"variant": "magic"})
    with pytest.raises(LeaklineError, match="cannot import"):
        imported("nowhere.at.all:Net")
    with pytest.raises(LeaklineError, match="cannot be called"):
        imported("leakline.recordings.format:VERSION")
    with pytest.raises(LeaklineError, match="round 7 is not in this recording"):
        attack_recording(recording, attack(), target(), rounds=[7])


def test_variants_and_settings_meet():
    mine = Inversion.of({"variant": "geiping", "iterations": 7, "variation": 0.5}).recipe
    assert (mine.terms.distance, mine.terms.variation) == ("cosine", 0.5)
    assert (mine.search.iterations, mine.search.signed, mine.statistics) == (7, True, "none")
    assert Inversion.of({"labels": "trainable"}).recipe.labels == "trainable"
    assert Inversion.of({}, (3, 64, 64)).recipe.search.levels != (1.0,)
    assert Inversion.of({}, SHAPE).recipe.search.levels == (1.0,)
    for wrong in ({"labels": "known"}, {"terms": 3}):
        with pytest.raises(LeaklineError, match="there is no setting"):
            Inversion.of(wrong)


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


def test_galleries_of_grey_and_of_colour(tmp_path):
    import io

    from PIL import Image

    grey = Image.open(io.BytesIO(gallery(torch.rand(3, 1, 8, 8), torch.rand(3, 1, 8, 8))))
    assert (grey.mode, grey.size) == ("L", (3 * 9 * 8, 2 * 9 * 8))
    assert Image.open(io.BytesIO(gallery(torch.rand(2, 3, 100, 90)))).mode == "RGB"


def test_the_command(leakline, tmp_path):
    recorded(tmp_path / "rec")
    (tmp_path / "their_net.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential("
        "nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))\n"
    )
    sys.path.insert(0, str(tmp_path))

    def call(*words: str) -> tuple[int, str, str]:
        return leakline("attack", "rec", "--model", "their_net:build", *words)

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
        (("--shape", "1,8,8", *plan, "--client", "zoe"), "no update of zoe"),
    ):
        code, _, err = call(*words)
        assert (code, said in err) == (2, True), err
