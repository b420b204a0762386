import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics

from leakline.utility import segmentation as ours

torch.set_num_threads(1)

IMAGES = (5, 1, 4, 4)
# A grid of logits: below the smallest float, "logit > 0" and "sigmoid > 0.5" part ways in rounding.
LOGITS = arrays(np.float32, IMAGES, elements=st.sampled_from([k / 4 for k in range(-20, 21)]))
MASKS = arrays(np.uint8, IMAGES, elements=st.integers(0, 1))


@settings(deadline=None, max_examples=40)
@given(LOGITS, MASKS)
def test_iou_never_exceeds_dice(logits, masks):
    dice, iou = ours.dice(logits, masks), ours.iou(logits, masks)
    assert (iou <= dice).all()
    torch.testing.assert_close(iou, dice / (2 - dice), atol=1e-12, rtol=0)
    assert ((dice >= 0) & (dice <= 1)).all()


@settings(deadline=None, max_examples=40)
@given(LOGITS, MASKS)
def test_equals_scikit_learn_where_it_is_defined(logits, masks):
    dice, iou = ours.dice(logits, masks), ours.iou(logits, masks)
    for row, (output, mask) in enumerate(zip(logits, masks, strict=True)):
        guess = 1 / (1 + np.exp(-output.astype(float).ravel())) > 0.5
        if guess.any() or mask.any():
            assert dice[row] == pytest.approx(metrics.f1_score(mask.ravel(), guess, zero_division=0))
            assert iou[row] == pytest.approx(metrics.jaccard_score(mask.ravel(), guess, zero_division=0))
        else:
            assert dice[row] == iou[row] == 1


def test_empty_masks():
    nothing, something = -torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4)
    empty = torch.zeros(1, 1, 4, 4)
    assert ours.dice(nothing, empty) == ours.iou(nothing, empty) == 1
    assert ours.dice(something, empty) == ours.iou(something, empty) == 0
    assert ours.soft_dice(-40 * something.double(), empty) == pytest.approx(0, abs=1e-9)


def test_soft_dice_by_hand_and_batch_size_does_not_matter():
    logits = torch.tensor([0.0, 2.0, -1.0, 0.5]).view(1, 1, 2, 2)
    mask = torch.tensor([1, 1, 0, 0], dtype=torch.uint8).view(1, 1, 2, 2)
    p = [1 / (1 + math.exp(-v)) for v in (0.0, 2.0, -1.0, 0.5)]
    by_hand = 1 - (2 * (p[0] + p[1]) + 1e-5) / (sum(p) + 2 + 1e-5)
    assert float(ours.soft_dice(logits, mask)) == pytest.approx(by_hand, abs=1e-6)
    entropy = -(math.log(p[0]) + math.log(p[1]) + math.log(1 - p[2]) + math.log(1 - p[3])) / 4
    assert float(ours.dice_ce(logits, mask)) == pytest.approx(by_hand + entropy, abs=1e-6)
    both = torch.cat([logits, -logits]), torch.cat([mask, mask])
    assert float(ours.soft_dice(*both)) == pytest.approx(
        (float(ours.soft_dice(logits, mask)) + float(ours.soft_dice(-logits, mask))) / 2
    )


@pytest.mark.parametrize("loss", [ours.soft_dice, ours.dice_ce, ours.bce])
def test_losses_fall_towards_the_mask(loss):
    mask = torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    mask[:, :, :2] = 1
    logits = torch.zeros_like(mask, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(logits, mask), logits)
    assert ((gradient < 0) == (mask > 0)).all()
    assert loss(20 * (2 * mask - 1), mask) < 1e-6


def test_summary_per_patient_and_by_site():
    mask = torch.zeros(3, 1, 2, 2)
    mask[:, 0, 0, 0] = 1
    logits = torch.where(mask > 0, 5.0, -5.0)
    logits[2] *= -1
    found = ours.summary(logits, mask, groups=["anna", "bert", "bert"])
    assert set(found) == set(ours.MEASURED)
    assert found["dice"] == pytest.approx(2 / 3)
    assert found["dice_patient"] == pytest.approx((1 + 0.5) / 2)
    assert found["iou_patient"] == pytest.approx((1 + 0.5) / 2)
    assert set(ours.summary(logits, mask)) == {"dice", "iou", "loss"}
    assert ours.group_means(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([7, 7, 3])) == {"7": 1.5, "3": 4.0}


def test_a_wrecked_image_scores_zero_even_on_an_empty_mask():
    logits = torch.full((2, 1, 2, 2), -1.0)
    logits[0, 0, 0, 0] = math.nan
    assert ours.dice(logits, torch.zeros(2, 1, 2, 2)).tolist() == [0, 1]
    assert ours.iou(logits, torch.zeros(2, 1, 2, 2)).tolist() == [0, 1]


def test_bad_masks_are_refused():
    logits = torch.zeros(1, 1, 4, 4)
    with pytest.raises(ValueError, match="0 and 1 only; got values up to 255"):
        ours.dice(logits, 255 * torch.ones(1, 1, 4, 4))
    for measure in (ours.dice, ours.soft_dice, ours.bce):
        with pytest.raises(ValueError, match="masks"):
            measure(logits, torch.zeros(1, 1, 4, 5))
    with pytest.raises(ValueError, match="one group per value"):
        ours.group_means([1.0, 2.0], ["a"])
