"""The attack on the menu: a study's worth of challenges, readings with their nulls, pictures, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from leakline.attacks.inversion import VARIANTS, GradientInversion
from leakline.attacks.inversion.attack import EARLY, EVALUATION, WEIGHED
from leakline.attacks.inversion.judge import Reconstruction, TrueImages, readings
from leakline.attacks.inversion.scene import prior_of
from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.data.phantoms import Phantoms
from leakline.defences import FedBN, Intermediaries, PercentileGaussian
from leakline.errors import LeaklineError, StudyError
from leakline.federation import Federation
from leakline.leakage.images import rdlv_max
from leakline.models.small import SmallCNN
from leakline.readings import Reading
from leakline.study.lab import Lab, examine
from leakline.study.store import Store
from leakline.study.train import train_run

torch.set_num_threads(1)
SMOOTH = SmallCNN((8, 16), 16, "softplus", "batch", "average")


@pytest.fixture(scope="module")
def world():
    """Two hospitals with one image each, one with twelve; the server has forty of others."""
    data = Phantoms(examples=60, size=32, seed=1).load().train

    def part(*rows):
        return Data(data.x[list(rows)], data.y[list(rows)])

    clients = (Client("one", part(0)), Client("other", part(1)), Client("many", part(*range(2, 14))))
    task = Task(clients, None, part(*range(20, 60)), ("0", "1", "2", "3"))
    return Federation(task, SMOOTH, Plan(batch=4, learning_rate=0.05), rounds=1)


def lab_of(federation, attack, path):
    store = Store(path)
    return Lab(federation, store, train_run(store, federation, workers=1, keep=attack.wants(federation)), 1)


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def attacked(world, told, tmp_path_factory):
    attack = GradientInversion(clients=("one", "other"), iterations=160, restarts=1)
    lab = replace(
        lab_of(world, attack, tmp_path_factory.mktemp("store")), says=lambda line, share=None: told.append(line)
    )
    return attack, lab, examine(attack, lab)


def test_whoever_watches_is_told_how_far_it_has_come(attacked, told):
    assert any(line.startswith("grad+bn of one: restart 1, iteration ") for line in told)
    assert any(line.startswith("grad+bn of other: ") and "objective" in line for line in told)


def test_it_reads_ssim_psnr_and_rdlv_of_each_attacked_client_and_over_all(attacked):
    _, _, found = attacked
    by = {(r.measure, r.client): r for r in found}
    assert {m for m, _ in by} == {"ssim", "psnr", "rdlv", "iip", "iip-exact", "cosine"}
    for client in ("one", "other"):
        leak = by["rdlv", client]
        assert leak.value > 0
        assert leak.chance is not None
        assert leak.value > leak.chance
        assert leak.about["decoys"] > 20
        assert 0 < leak.about["p"] <= 1
        assert by["ssim", client].value > by["ssim", client].chance  # the prior's
        assert "read exactly" in by["ssim", client].note
        assert by["ssim", client].about["exposed"]
        assert by["ssim", client].about["seconds"] > 0
    over = by["rdlv", None]
    assert over.n == 2
    assert over.low <= over.value <= over.high


def test_the_bill_counts_the_evaluations_that_the_search_makes(attacked, world):
    attack, _, found = attacked
    made = sum(r.about["iterations"] for r in found if r.measure == "ssim" and r.client)
    # One image each. A line search may go a few evaluations beyond its limit.
    assert made <= attack.passes(world) / EVALUATION + 10
    assert attack.passes(world) / EVALUATION <= 2 * made
    assert replace(attack, variant="bn-only").passes(world) == pytest.approx(attack.passes(world) / EVALUATION)
    many = replace(attack, clients=("one", "many"), deals=1)
    assert many.passes(world) == pytest.approx(attack.passes(world) * 13 / 2)
    trials = 12 * 30 + 4 * 90  # twelve ways to have labels, and the best four again
    tried = replace(many, deals=12)
    assert tried.passes(world) == pytest.approx(many.passes(world) + EVALUATION * 12 * trials)
    by = tried.passes_by(world)
    batch = world.plan_of("many").batch
    assert list(by) == [1, min(12, batch or 12)]  # one image alone, and those of "many" in its own batches
    assert sum(by.values()) == tried.passes(world)
    assert by[1] == pytest.approx(attack.passes(world) / 2)
    assert tried.usual(world) == many.usual(world) == 1


def test_under_noise_a_search_is_expected_to_end_early_and_one_image_s_labels_are_tried(world):
    attack = GradientInversion(clients=("one",), iterations=100, restarts=2, settings={"draws": 50})
    noisy = replace(world, defences=(PercentileGaussian(1.0),))
    trials = 4 * 30 + 2 * 90  # four classes, and the better two again
    made = attack.passes(noisy) / (EVALUATION * WEIGHED * world.plan.epochs)
    assert made == pytest.approx(2 * (100 + 50) + trials)
    assert attack.usual(noisy) == pytest.approx(
        (2 * (EARLY * 100 + 50) + trials) / (300 + trials)
    )  # draws never end early
    assert attack.usual(world) == 1
    assert attack.passes(world) == pytest.approx(200 * EVALUATION * world.plan.epochs)
    for changes in ({"defences": "unknown"}, {"variant": "geiping"}, {"prior": "flat"}, {"rate": "unknown"}):
        blind = replace(attack, **changes)  # nobody weighs noise so, and there is no posterior
        assert blind.usual(noisy) == 1
        assert blind.passes(noisy) == pytest.approx((200 + trials) * EVALUATION * world.plan.epochs)


def test_two_workers_read_what_one_reads(attacked, tmp_path):
    attack, lab, found = attacked
    wide = replace(lab_of(lab.federation, attack, tmp_path), workers=2)
    told = {(r.measure, r.client): r.value for r in examine(attack, wide)}
    assert told == {(r.measure, r.client): r.value for r in found}


def test_pictures_and_arrays_are_left_in_the_runs_media(attacked):
    _, lab, _ = attacked
    folder = next(lab.run.media(lab.attack).rglob("one"))
    made, truth = (np.load(folder / f"{n}.npy", allow_pickle=False) for n in ("reconstruction", "truth"))
    assert made.shape == truth.shape == (1, 1, 32, 32)
    assert (folder / "strip.png").read_bytes()[:4] == b"\x89PNG"


def test_the_attackers_half_is_not_given_the_images(attacked, world):
    attack, lab, _ = attacked
    challenge = next(attack.challenges(lab))
    secret = world.clients["one"].train.inputs(slice(None))
    assert torch.equal(challenge.secret.images, secret)

    def tensors(thing, depth=0):
        if isinstance(thing, torch.Tensor):
            yield thing
        elif depth < 4 and hasattr(thing, "__dict__"):
            for value in vars(thing).values():
                yield from tensors(value, depth + 1)
        elif isinstance(thing, tuple | list):
            for value in thing:
                yield from tensors(value, depth + 1)

    for seen in [*tensors(challenge.view), *tensors(challenge.hints)]:
        assert seen.shape != secret.shape or not torch.allclose(seen, secret)


def test_a_wrong_checkpoint_and_no_knowledge_of_rate_or_labels_can_be_asked_for(world, tmp_path):
    blind = GradientInversion(
        clients=("one",),
        iterations=60,
        restarts=1,
        checkpoint="wrong",
        rate="unknown",
        labels="unknown",
        statistics="none",
        prior="none",
    )
    assert blind.method.terms.distance == "cosine"
    assert blind.method.terms.statistics == 0
    assert blind.method.labels == "trainable"
    found = examine(blind, lab_of(world, blind, tmp_path))
    assert next(r for r in found if r.measure == "ssim").value < 0.5


def test_under_fedbn_the_statistics_are_not_there_and_it_works_without(world, tmp_path):
    attack = GradientInversion(clients=("one",), iterations=160, restarts=1)
    guarded = replace(world, defences=(FedBN(),))
    found = examine(attack, lab_of(guarded, attack, tmp_path))
    assert next(r for r in found if r.measure == "rdlv" and r.client).value > 0


def test_every_part_of_a_client_that_splits_itself_is_attacked(tmp_path):
    """Two images in two parts are two updates of one image each: both come back, as good as alone."""
    data = Phantoms(examples=60, size=32, seed=1).load().train
    task = Task((Client("a", data.take([0, 1])),), None, data.take(range(20, 60)), ("0", "1", "2", "3"))
    dealt = Intermediaries(noise_multiplier=1.0, clip=1.0, parts=2, smallest=1)
    split = Federation(task, SMOOTH, Plan(batch=4, learning_rate=0.05), rounds=1, defences=(dealt,), noise="seeded")
    attack = GradientInversion(iterations=100, restarts=1, deals=1)
    lab = lab_of(split, attack, tmp_path)
    (challenge,) = attack.challenges(lab)
    assert [u.examples for u in challenge.view.updates[0]] == [1, 1]
    made, truth = attack.guess(challenge.view, challenge.hints), challenge.secret
    assert made.images.shape == truth.images.shape
    assert bool((rdlv_max(truth.images, made.images, truth.prior) > 0.05).all())


def test_priors():
    data = Phantoms(examples=30, size=32, seed=1).load().train
    task = Task((Client("a", data.take([0])),), None, data.take(range(1, 30)), ("0", "1", "2", "3"))
    world = Federation(task, SMOOTH)
    mean = prior_of(world, "public", True, 0)
    assert torch.allclose(mean, data.inputs(slice(1, 30)).mean(0, keepdim=True), atol=1e-6)
    assert not torch.allclose(prior_of(world, "wrong", True, 0), mean, atol=0.05)
    assert torch.equal(prior_of(world, "none", True, 4), prior_of(world, "none", True, 4))
    bare = replace(world, task=replace(task, validation=None))
    with pytest.raises(StudyError, match="no public images"):
        prior_of(bare, "public", True, 0)


def test_what_cannot_be_attacked_is_refused_before_training(world):
    def refuse(match, federation=world, **changes):
        with pytest.raises(LeaklineError, match=match):
            GradientInversion(**changes).check(federation)

    refuse("most_images = 4", clients=("many",), most_images=4)
    refuse("no client 'nobody'", clients=("nobody",))
    refuse("cannot be read", embedding="nowhere.safetensors")
    refuse("round 3 of 1", rounds=(3,))
    refuse("the model has none", replace(world, model=SmallCNN((8,), 8)))
    GradientInversion(variant="geiping").check(replace(world, model=SmallCNN((8,), 8)))
    for wrong in ({"variant": "magic"}, {"rounds": ()}, {"restarts": -1}):
        with pytest.raises(ValueError, match=r"magic|\(\)|0"):
            GradientInversion(**wrong)


def test_bn_only_without_statistics_keeps_its_class_loss_and_dlg_nothing_to_do_with_them():
    assert GradientInversion(variant="bn-only", statistics="none").method.terms.label > 0
    assert VARIANTS["dlg"].terms.statistics == 0
    assert GradientInversion(iterations=7, restarts=3).method.search.restarts == 3
    assert (GradientInversion(restarts=1).effort(None).given, GradientInversion().effort(None).given) == (1000, 3000)
    assert GradientInversion(iterations=600, restarts=2).effort(None).needed == 3000


def test_rdlv_of_the_prior_itself_is_zero_and_a_perfect_guess_is_above_its_null():
    data = Phantoms(examples=30, size=32, seed=2).load().train.inputs(slice(None))
    prior, decoys = data[2:].mean(0, keepdim=True), data[2:, None]

    def told(images):
        truth = TrueImages(data[:1], prior, decoys, "a", 0)
        found = readings([Reconstruction(images, 0.0, 1, 1.0)], [truth])
        return {r.measure: r for r in found if isinstance(r, Reading) and r.client}

    assert told(prior)["rdlv"].value == pytest.approx(0, abs=1e-9)
    assert told(data[:1])["ssim"].value == pytest.approx(1)
    assert told(data[:1])["rdlv"].about == {"p": pytest.approx(1 / 29), "decoys": 28}  # none of them is as good


def test_a_run_that_kept_nothing_says_so(world, tmp_path):
    store = Store(tmp_path)
    lab = Lab(world, store, train_run(store, world, workers=1), 1)
    with pytest.raises(StudyError, match="were not kept"):
        next(GradientInversion().challenges(lab))


def test_a_run_that_was_trained_for_an_attack_on_others_says_so(world, tmp_path):
    lab = lab_of(world, GradientInversion(clients=("one",)), tmp_path)
    with pytest.raises(StudyError, match="other in round 0 was not kept"):
        next(GradientInversion(clients=("one", "other")).challenges(lab))
