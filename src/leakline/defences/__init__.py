"""The defences: one object per promise, and the menu that a study file names them by."""

from leakline.defences.adaptive_clip import AdaptiveClip
from leakline.defences.base import Defence, Stage, hooks_of
from leakline.defences.gaussian_noise import GaussianNoise
from leakline.defences.gaussian_release import GaussianRelease
from leakline.defences.global_dp import GlobalDP
from leakline.defences.ldp_sgd import LdpSgd
from leakline.defences.metric_privacy import MetricPrivacy
from leakline.defences.percentile_gaussian import PercentileGaussian
from leakline.defences.personal_layers import FedBN, FedPer

__all__ = [
    "MENU",
    "AdaptiveClip",
    "Defence",
    "FedBN",
    "FedPer",
    "GaussianNoise",
    "GaussianRelease",
    "GlobalDP",
    "LdpSgd",
    "MetricPrivacy",
    "PercentileGaussian",
    "Stage",
    "hooks_of",
]

MENU: dict[str, type[Defence]] = {
    "global-dp": GlobalDP,
    "adaptive-clip": AdaptiveClip,
    "metric-privacy": MetricPrivacy,
    "ldp-sgd": LdpSgd,
    "gaussian-release": GaussianRelease,
    "percentile-gaussian": PercentileGaussian,
    "fedper": FedPer,
    "fedbn": FedBN,
    "gaussian-noise": GaussianNoise,
}
