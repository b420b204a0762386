"""Data that need no file: deterministic, learnable but not trivial, traits and sites that really act."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from leakline.data import DATASETS, PARTITIONERS, ByColumn, Counts, Digits, Motion, Phantoms, partition


def pooled(x, cells=16):
    return torch.nn.functional.adaptive_avg_pool2d(x.float() / 255, cells).flatten(1).numpy()


def fitted_accuracy(train_x, train_y, test_x, test_y):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    return model.fit(train_x, train_y).score(test_x, test_y)


def test_menus_describe_themselves():
    for name, part in {**DATASETS, **PARTITIONERS}.items():
        first = (part.__doc__ or "").splitlines()[0]
        assert first.endswith((".", ":")), name
        assert part.__dataclass_params__.frozen, name
    for name, source in DATASETS.items():
        assert source.embedded == (source.needs == ""), name
    assert [n for n, s in DATASETS.items() if s.embedded] == ["digits", "phantoms", "motion"]


def test_importing_the_menus_imports_nothing_heavy():
    heavy = "('sklearn', 'PIL', 'pandas', 'scipy', 'pyarrow')"
    code = f"import sys, leakline.data, leakline.data.prepare; print([m for m in {heavy} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_digits():
    data = Digits().load()
    assert data.train.x.shape == (1797, 1, 8, 8)
    assert data.train.x.dtype == torch.uint8
    assert int(data.train.x.max()) == 255
    assert np.bincount(data.train.labels()).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    few = Digits(limit=100).load()
    assert np.bincount(few.train.labels()).tolist() == [10] * 10


@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("kind", ["classification", "segmentation"])
def test_phantoms_have_the_promised_form(size, kind):
    data = Phantoms(examples=31, test=8, size=size, kind=kind, classes=3, slices=2).load()
    assert data.train.x.shape == (31, 1, size, size)
    assert data.train.x.dtype == torch.uint8
    assert len(data.test) == 8
    assert not set(data.train.groups.tolist()) & set(data.test.groups.tolist())
    groups = np.bincount(data.train.groups.numpy())
    assert groups.max() <= 2
    for g in np.unique(data.train.groups.numpy()):
        rows = np.flatnonzero(data.train.groups.numpy() == g)
        assert len({data.columns["site"][i] for i in rows}) == 1
        assert len({data.columns["patient"][i] for i in rows}) == 1
    if kind == "segmentation":
        assert data.train.y.shape == data.train.x.shape
        assert set(np.unique(data.train.y.numpy())) == {0, 1}
        assert data.classes == ("background", "lesion")
    else:
        assert data.classes == ("none", "mild", "moderate")


def test_phantoms_are_their_seed():
    a, b, c = (Phantoms(examples=60, size=32, seed=s).load() for s in (5, 5, 6))
    assert a.train.fingerprint() == b.train.fingerprint() != c.train.fingerprint()
    assert a.columns == b.columns


def test_phantoms_shares_are_exact_so_that_paper_tables_fit():
    data = Phantoms(examples=512, size=32, shares=(724, 49, 2566, 1781), test=40).load()
    assert np.bincount(data.train.labels()).tolist() == [72, 5, 257, 178]
    task = partition(data, Counts("non-iid", scale=0.1))
    assert [len(c.train) + len(c.test) for c in task.clients] == np.asarray(Counts("non-iid", scale=0.1).scaled()).sum(
        1
    ).tolist()


def test_phantom_classes_can_be_learnt_but_not_for_nothing():
    data = Phantoms(examples=900, test=450, size=64).load()
    score = fitted_accuracy(pooled(data.train.x), data.train.y, pooled(data.test.x), data.test.y)
    # Chance is 0.25 with standard deviation 0.02: 0.45 has a false-alarm rate far below 1e-4.
    assert 0.45 < score < 0.95
    flat = Phantoms(examples=900, test=450, size=64, class_effect=0.0).load()
    null = fitted_accuracy(pooled(flat.train.x), flat.train.y, pooled(flat.test.x), flat.test.y)
    # Three slices of each patient: about 0.035 around 0.25 at worst, so 0.15 is more than four deviations.
    assert abs(null - 0.25) < 0.15


def test_phantom_mean_brightness_does_not_give_the_class_away():
    data = Phantoms(examples=900, test=450, size=32).load()
    score = fitted_accuracy(pooled(data.train.x, 1), data.train.y, pooled(data.test.x, 1), data.test.y)
    assert score < 0.45


def test_sites_differ_as_much_as_asked():
    def site_accuracy(effect):
        data = Phantoms(examples=900, size=32, lesions=0.0, site_effect=effect, slices=1).load()
        y = np.unique(data.columns["site"], return_inverse=True)[1]
        x = pooled(data.train.x, 8)
        return fitted_accuracy(x[:600], y[:600], x[600:], y[600:])

    # Without site effects: chance 0.25, standard deviation 0.025 on 300 images; 0.36 is 4.4 deviations.
    assert site_accuracy(0.0) < 0.36
    assert site_accuracy(1.0) > 0.8


def test_lesions_are_bright_and_inside_the_head():
    data = Phantoms(examples=120, kind="segmentation", lesions=1.0, site_effect=0.0, slices=1).load()
    x, m = data.train.x.float()[:, 0], data.train.y[:, 0].bool()
    assert m.flatten(1).any(1).float().mean() > 0.98
    inside = torch.stack([a[b].mean() for a, b in zip(x, m, strict=True) if b.any()])
    head = torch.stack([a[(a > 60) & ~b].mean() for a, b in zip(x, m, strict=True) if b.any()])
    assert (inside > head).float().mean() > 0.9
    assert Phantoms(examples=30, kind="segmentation", lesions=0.0).load().train.y.sum() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"size": 50},
        {"classes": 5},
        {"kind": "x"},
        {"examples": 1},
        {"lesions": 2.0},
        {"shares": (1.0,)},
        {"slices": 0},
    ],
)
def test_phantom_settings_are_checked(options):
    with pytest.raises(ValueError, match=r"."):
        Phantoms(**options)


def gender_features(effect, seed=0, subjects=40):
    """One row per subject: spectrum and strength of each channel while walking."""
    data = Motion(subjects=subjects, trials=2, seconds=20, trait_effect=effect, normalise="none", seed=seed).load()
    who = np.array(data.columns["subject"])
    walking = data.train.y.numpy() == data.classes.index("wlk")
    names = list(data.traits["subject"])
    x = data.train.x.numpy()
    rows = []
    for name in names:
        own = x[walking & (who == name)]
        centred = own - own.mean(2, keepdims=True)
        spectrum = np.abs(np.fft.rfft(centred, axis=2))[:, 7, :12].mean(0)
        rows.append(np.concatenate([np.log(centred.std((0, 2)) + 1e-3), spectrum / spectrum.sum()]))
    return np.array(rows), [data.traits["subject"][n] for n in names]


def leave_one_out(x, y):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import LeaveOneOut, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    return float((cross_val_predict(model, x, y, cv=LeaveOneOut()) == y).mean())


@pytest.mark.parametrize("trait", ["gender", "bmi_over_25"])
def test_motion_traits_shift_the_signal(trait):
    x, traits = gender_features(3.0)
    y = np.array([t[trait] in ("woman", True) for t in traits])
    # Chance at most 0.65 for 40 people: 0.9 or more has probability below 1e-4.
    assert leave_one_out(x, y) >= 0.9


def test_without_effect_motion_traits_leave_no_trace():
    x, traits = gender_features(0.0)
    y = np.array([t["gender"] == "woman" for t in traits])
    # Binomial(40, 1/2): 0.8 or more has probability 9e-5.
    assert leave_one_out(x, y) < 0.8


def test_motion_has_the_promised_form():
    data = Motion(subjects=6, trials=2, seconds=10).load()
    assert data.train.x.shape == (6 * 6 * 2 * 4, 9, 125)
    assert data.train.x.dtype == torch.float32
    assert torch.isfinite(data.train.x).all()
    mean, std = data.train.x.mean((0, 2)), data.train.x.std((0, 2))
    assert torch.allclose(mean, torch.zeros(9), atol=1e-3)
    assert torch.allclose(std, torch.ones(9), atol=1e-2)
    traits = data.traits["subject"]["sub-1"]
    assert set(traits) == {"gender", "age", "height", "weight", "bmi", "bmi_over_25"}
    assert traits["bmi"] == pytest.approx(traits["weight"] / (traits["height"] / 100) ** 2, abs=0.01)
    assert traits["bmi_over_25"] == (traits["bmi"] > 25)
    assert sum(t["gender"] == "woman" for t in data.traits["subject"].values()) == 3
    assert Motion(subjects=6, trials=2, seconds=10).load().train.fingerprint() == data.train.fingerprint()
    task = partition(data, ByColumn("subject"), client_test=0.3, server_test=0.0)
    assert [c.name for c in task.clients] == [f"sub-{i}" for i in range(1, 7)]
    assert all(c.traits["gender"] in ("man", "woman") for c in task.clients)
    for c in task.clients:
        assert not set(c.train.groups.tolist()) & set(c.test.groups.tolist())


def test_five_recordings_meet_a_fifth_exactly():
    task = partition(Motion(subjects=4).load(), ByColumn("subject"), client_test=0.2, server_test=0.0)
    for c in task.clients:
        assert len(c.test) * 4 == len(c.train)
        assert np.ptp(np.bincount(c.test.labels(), minlength=6)) == 0


def test_motion_activities_can_be_learnt():
    data = Motion(subjects=10, trials=2, seconds=15).load()
    x, y = data.train.x.numpy(), data.train.y.numpy()
    features = np.concatenate([x.mean(2), np.log(x.std(2) + 1e-3)], 1)
    new = np.isin(data.columns["subject"], ["sub-9", "sub-10"])
    assert 0.6 < fitted_accuracy(features[~new], y[~new], features[new], y[new]) <= 1.0
