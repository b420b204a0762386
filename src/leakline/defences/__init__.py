"""The defences: one object per promise, and the menu that a study file names them by."""

from leakline.defences.adaptive_clip import AdaptiveClip
from leakline.defences.base import Defence, Law, Loss, Promises, Stage, Terms, Wish, hooks_of
from leakline.defences.delayed_rmsprop import DelayedRmsProp
from leakline.defences.distributed_dp import DistributedDp
from leakline.defences.dp_sgd import DpSgd
from leakline.defences.gaussian_noise import GaussianNoise
from leakline.defences.gaussian_release import GaussianRelease
from leakline.defences.global_dp import GlobalDP
from leakline.defences.harm import harm
from leakline.defences.hide_layers import HideLayers
from leakline.defences.intermediaries import Intermediaries
from leakline.defences.ldp_sgd import LdpSgd
from leakline.defences.metric_privacy import MetricPrivacy
from leakline.defences.noised import Noised
from leakline.defences.percentile_gaussian import PercentileGaussian
from leakline.defences.personal_layers import FedBN, FedPer
from leakline.defences.pinned_model import PinnedModel
from leakline.defences.replayed_noise import ReplayedNoise

__all__ = [
    "MENU",
    "AdaptiveClip",
    "Defence",
    "DelayedRmsProp",
    "DistributedDp",
    "DpSgd",
    "FedBN",
    "FedPer",
    "GaussianNoise",
    "GaussianRelease",
    "GlobalDP",
    "HideLayers",
    "Intermediaries",
    "Law",
    "LdpSgd",
    "Loss",
    "MetricPrivacy",
    "Noised",
    "PercentileGaussian",
    "PinnedModel",
    "Promises",
    "ReplayedNoise",
    "Stage",
    "Terms",
    "Wish",
    "harm",
    "hooks_of",
]

MENU: dict[str, type[Defence]] = {
    "global-dp": GlobalDP,
    "adaptive-clip": AdaptiveClip,
    "metric-privacy": MetricPrivacy,
    "intermediaries": Intermediaries,
    "dp2-rmsprop": DelayedRmsProp,
    "dp-sgd": DpSgd,
    "distributed-dp": DistributedDp,
    "ldp-sgd": LdpSgd,
    "gaussian-release": GaussianRelease,
    "percentile-gaussian": PercentileGaussian,
    "fedper": FedPer,
    "fedbn": FedBN,
    "hide-layers": HideLayers,
    "gaussian-noise": GaussianNoise,
    "replayed-noise": ReplayedNoise,
    "pinned-model": PinnedModel,
}
