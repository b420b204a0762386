"""Gradient inversion: images from one client's update (paper 001), by a differentiable copy of its training.

Read in this order: `simulate` (the client's steps as a function of its images), `statistics` (batch statistics from
running averages), `exposed` (what can be read exactly), `objective`, `search`, `posterior` (under noise), `attack`.
"""

from leakline.attacks.inversion.attack import GradientInversion
from leakline.attacks.inversion.intercepted import Intercepted, problem_of
from leakline.attacks.inversion.objective import Terms
from leakline.attacks.inversion.schedule import Search, Standing
from leakline.attacks.inversion.search import Found, search
from leakline.attacks.inversion.simulate import simulate
from leakline.attacks.inversion.variants import VARIANTS

__all__ = [
    "VARIANTS",
    "Found",
    "GradientInversion",
    "Intercepted",
    "Search",
    "Standing",
    "Terms",
    "problem_of",
    "search",
    "simulate",
]
