import math

import pytest
import torch

from leakline.errors import StackError, StudyError
from leakline.measures import MEASURES
from leakline.utility import MENU, objective

torch.set_num_threads(1)


def batch(kind):
    draw = torch.Generator().manual_seed(0)
    if kind == "classification":
        return torch.randn(6, 3, generator=draw), torch.randint(0, 3, (6,), generator=draw)
    shape = (6, 1, 8, 8)
    return torch.randn(shape, generator=draw), torch.randint(0, 2, shape, generator=draw, dtype=torch.uint8)


@pytest.mark.parametrize("name", MENU)
def test_the_parts_of_an_objective_agree(name):
    goal = MENU[name]
    outputs, targets = batch(goal.kind)
    outputs.requires_grad_()
    each = goal.per_example_loss(outputs, targets)
    assert each.shape == (6,)
    torch.testing.assert_close(goal.loss(outputs, targets), each.mean())
    for row in range(6):
        alone = goal.loss(outputs[row : row + 1], targets[row : row + 1])
        torch.testing.assert_close(alone, each[row])
    goal.loss(outputs, targets).backward()
    assert outputs.grad.abs().sum() > 0

    score, found = goal.score(outputs, targets), goal.summary(outputs, targets)
    assert all(values.shape == (6,) and not values.requires_grad for values in score.values())
    assert found["loss"] == pytest.approx(float(each.detach().mean()), rel=1e-5)
    assert found[goal.headline] == pytest.approx(
        float(score["correct" if goal.kind == "classification" else "dice"].mean())
    )
    assert set(found) <= set(goal.measures)
    assert goal.measures["loss"].better == "lower"
    assert goal.measures[goal.headline].better == "higher"


def test_patients_reach_the_summary():
    goal = objective("segmentation")
    outputs, targets = batch("segmentation")
    found = goal.summary(outputs, targets, groups=torch.tensor([0, 0, 0, 1, 1, 2]))
    dice = goal.score(outputs, targets)["dice"]
    assert found["dice_patient"] == pytest.approx(float(dice[:3].mean() + dice[3:5].mean() + dice[5]) / 3, rel=1e-12)


def test_choice_by_kind_and_name():
    assert objective("classification").name == "cross-entropy"
    assert objective("segmentation").name == "soft-dice"
    assert objective("segmentation", "dice+ce").name == "dice+ce"
    with pytest.raises(StackError, match="is for segmentation, the task is classification"):
        objective("classification", "soft-dice")
    with pytest.raises(StudyError, match='did you mean "cross-entropy"'):
        objective("classification", "crossentropy")


def test_ranges_are_ordered():
    assert all(fact.low < fact.high for goal in MENU.values() for fact in goal.measures.values())
    assert MEASURES["loss"].high == math.inf


def test_a_loss_of_ones_own_by_import_path():
    own = objective("classification", "torch.nn.functional:cross_entropy")
    menu = objective("classification")
    logits, labels = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
    assert torch.equal(own.loss(logits, labels), menu.loss(logits, labels))
    torch.testing.assert_close(own.per_example_loss(logits, labels), menu.per_example_loss(logits, labels))
    with pytest.raises(StudyError, match="cannot be imported"):
        objective("classification", "torch.nn.functional:no_such_loss")
