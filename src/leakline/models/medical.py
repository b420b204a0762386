"""Networks that MONAI builds; MONAI is imported only when one of them is asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from leakline.errors import RuntimeMissing
from leakline.models.base import Kind, Shape, fraction, image, needs, one_of, positive

MedicalNorm = Literal["batch", "batch-stateless", "group", "instance"]

_RELU = ("relu", {"inplace": False})


def _nets(model: str) -> Any:
    try:
        return importlib.import_module("monai.networks.nets")
    except ImportError as error:
        raise RuntimeMissing(
            f"the model {model!r} comes from MONAI, which is not installed ({error})",
            "model",
            "pip install leakline[medical], or use resnet or small-unet, which need nothing",
        ) from error


def _plain(network: nn.Module) -> nn.Module:
    # MONAI's blocks keep some in-place activations whatever `act` says; they break functional training.
    for module in network.modules():
        if getattr(module, "inplace", False) is True:
            setattr(module, "inplace", False)  # noqa: B010  # mypy knows nn.Module attributes only as tensors
    return network


def _renorm(network: nn.Module, norm: MedicalNorm) -> nn.Module:
    # MONAI's ResNet hands `norm` to its stem only, and its DenseNet fails on layers without weights.
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, _layer(norm, child.num_features))
    return network


def _layer(norm: MedicalNorm, channels: int) -> nn.Module:
    if norm == "group":
        return nn.GroupNorm(8, channels)
    if norm == "instance":
        return nn.InstanceNorm2d(channels)
    kept = norm == "batch"
    return nn.BatchNorm2d(channels, affine=kept, track_running_stats=kept)


def _minimum(norm: MedicalNorm) -> int:
    # 32x32 ends as one pixel, whose variance within the image InstanceNorm cannot take.
    return 64 if norm == "instance" else 32


@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 from MONAI (He et al. 2016), started at random.

    7x7 stem of stride 2 and a max pool, as in the original. Paper 001 starts from ImageNet weights, which
    cannot be shipped. ``norm="batch-stateless"`` keeps no running statistics and no scale (paper 004's
    choice).
    """

    norm: MedicalNorm = "batch"

    def __post_init__(self) -> None:
        one_of("norm", self.norm, MedicalNorm)

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network for images of at least 32x32, or 64x64 with InstanceNorm."""
        needs("resnet-18", "classification", kind)
        channels, _, _ = image("resnet-18", shape, minimum=_minimum(self.norm))
        network: nn.Module = _nets("resnet-18").resnet18(
            spatial_dims=2,
            n_input_channels=channels,
            num_classes=classes,
            conv1_t_stride=2,
            bias_downsample=False,
            act=_RELU,
        )
        return _renorm(_plain(network), self.norm)


@dataclass(frozen=True)
class DenseNet121:
    """DenseNet-121 from MONAI (Huang et al. 2017), started at random; paper 004's classifier.

    ``norm="batch-stateless"`` is what paper 004's code trains: BatchNorm without scale and without running
    statistics, so that test scores depend on the test batch. ``"group"`` is the sound choice under DP.
    """

    norm: MedicalNorm = "group"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        one_of("norm", self.norm, MedicalNorm)
        fraction("dropout", self.dropout)

    def build(self, shape: Shape, classes: int, kind: Kind = "classification") -> nn.Module:
        """The network for images of at least 32x32, or 64x64 with InstanceNorm."""
        needs("densenet-121", "classification", kind)
        channels, _, _ = image("densenet-121", shape, minimum=_minimum(self.norm))
        network: nn.Module = _nets("densenet-121").DenseNet121(
            spatial_dims=2,
            in_channels=channels,
            out_channels=classes,
            dropout_prob=self.dropout,
            act=_RELU,
            norm="batch",
        )
        return _renorm(_plain(network), self.norm)


@dataclass(frozen=True)
class UNet:
    """U-Net from MONAI for binary masks: one logit per pixel.

    ``width`` is the channel count of the first level, doubled at each of the ``levels``. Paper 004's
    network has 32 base channels and stateless BatchNorm; its exact wiring differs from MONAI's.
    """

    width: int = 32
    levels: int = 5
    norm: MedicalNorm = "group"

    def __post_init__(self) -> None:
        one_of("norm", self.norm, MedicalNorm)
        positive("width", self.width)
        if self.levels < 2:
            raise ValueError(f"levels must be at least 2; got {self.levels}")
        if self.norm == "group" and self.width % 8:
            raise ValueError(f'width must be a multiple of 8 with norm="group"; got {self.width}')

    def build(self, shape: Shape, classes: int, kind: Kind = "segmentation") -> nn.Module:
        """The network for images whose sides are multiples of 2^(levels - 1)."""
        needs("unet", "segmentation", kind)
        step = 2 ** (self.levels - 1)
        channels, height, width = image("unet", shape, minimum=2 * step)
        if height % step or width % step:
            raise ValueError(
                f"unet with {self.levels} levels needs sides that are multiples of {step}; "
                f"got {height}x{width}. Crop or pad the images, or give fewer levels"
            )
        network: nn.Module = _nets("unet").UNet(
            spatial_dims=2,
            in_channels=channels,
            out_channels=1,
            channels=tuple(self.width * 2**level for level in range(self.levels)),
            strides=(2,) * (self.levels - 1),
            num_res_units=0,
            act=_RELU,
            norm="batch",
        )
        return _renorm(_plain(network), self.norm)
