"""What does a federated-learning system promise, and what does it really leak?

Names are imported when they are first used, so that ``import leakline`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "AdaptiveClip": "leakline.defences",
    "Card": "leakline.cards",
    "Claim": "leakline.privacy",
    "Client": "leakline.data",
    "Cohort": "leakline.settings",
    "Data": "leakline.data",
    "Dataset": "leakline.data",
    "Defence": "leakline.defences",
    "DelayedRmsProp": "leakline.defences",
    "DistributedDp": "leakline.defences",
    "DpSgd": "leakline.defences",
    "Engine": "leakline.settings",
    "FedBN": "leakline.defences",
    "FedPer": "leakline.defences",
    "Federation": "leakline.federation",
    "GaussianNoise": "leakline.defences",
    "GaussianRelease": "leakline.defences",
    "GlobalDP": "leakline.defences",
    "HideLayers": "leakline.defences",
    "Intermediaries": "leakline.defences",
    "Judging": "leakline.settings",
    "Layout": "leakline.weights",
    "LdpSgd": "leakline.defences",
    "LeaklineError": "leakline.errors",
    "LocalTransport": "leakline.runtimes.local",
    "MetricPrivacy": "leakline.defences",
    "NoClaim": "leakline.privacy",
    "Order": "leakline.messages",
    "PercentileGaussian": "leakline.defences",
    "Plan": "leakline.bench.training",
    "Reading": "leakline.readings",
    "ReplayedNoise": "leakline.defences",
    "Round": "leakline.messages",
    "Stack": "leakline.stack",
    "Strategy": "leakline.strategies",
    "Study": "leakline.study",
    "Task": "leakline.data",
    "Transport": "leakline.federation",
    "Turn": "leakline.messages",
    "Update": "leakline.messages",
    "Weights": "leakline.weights",
    "account": "leakline.privacy",
    "answer": "leakline.runtimes.client",
    "attacks": "",
    "audit": "leakline.attacks.audit",
    "calibrate": "leakline.privacy",
    "data": "",
    "defences": "",
    "federate": "leakline.federation",
    "formal_card": "leakline.cards",
    "grid": "leakline.study",
    "leakage": "",
    "load": "leakline.study",
    "models": "",
    "partition": "leakline.data",
    "privacy": "",
    "strategies": "",
}
"""Where each public name lives; "" for a sub-package of that name."""

__all__ = list(_HOME)  # a test compares it with what is visible

if TYPE_CHECKING:
    from leakline import attacks as attacks
    from leakline import data as data
    from leakline import defences as defences
    from leakline import leakage as leakage
    from leakline import models as models
    from leakline import privacy as privacy
    from leakline import strategies as strategies
    from leakline.attacks.audit import audit as audit
    from leakline.bench.training import Plan as Plan
    from leakline.cards import Card as Card
    from leakline.cards import formal_card as formal_card
    from leakline.data import Client as Client
    from leakline.data import Data as Data
    from leakline.data import Dataset as Dataset
    from leakline.data import Task as Task
    from leakline.data import partition as partition
    from leakline.defences import AdaptiveClip as AdaptiveClip
    from leakline.defences import Defence as Defence
    from leakline.defences import DelayedRmsProp as DelayedRmsProp
    from leakline.defences import DistributedDp as DistributedDp
    from leakline.defences import DpSgd as DpSgd
    from leakline.defences import FedBN as FedBN
    from leakline.defences import FedPer as FedPer
    from leakline.defences import GaussianNoise as GaussianNoise
    from leakline.defences import GaussianRelease as GaussianRelease
    from leakline.defences import GlobalDP as GlobalDP
    from leakline.defences import HideLayers as HideLayers
    from leakline.defences import Intermediaries as Intermediaries
    from leakline.defences import LdpSgd as LdpSgd
    from leakline.defences import MetricPrivacy as MetricPrivacy
    from leakline.defences import PercentileGaussian as PercentileGaussian
    from leakline.defences import ReplayedNoise as ReplayedNoise
    from leakline.errors import LeaklineError as LeaklineError
    from leakline.federation import Federation as Federation
    from leakline.federation import Transport as Transport
    from leakline.federation import federate as federate
    from leakline.messages import Order as Order
    from leakline.messages import Round as Round
    from leakline.messages import Turn as Turn
    from leakline.messages import Update as Update
    from leakline.privacy import Claim as Claim
    from leakline.privacy import NoClaim as NoClaim
    from leakline.privacy import account as account
    from leakline.privacy import calibrate as calibrate
    from leakline.readings import Reading as Reading
    from leakline.runtimes.client import answer as answer
    from leakline.runtimes.local import LocalTransport as LocalTransport
    from leakline.settings import Cohort as Cohort
    from leakline.settings import Engine as Engine
    from leakline.settings import Judging as Judging
    from leakline.stack import Stack as Stack
    from leakline.strategies import Strategy as Strategy
    from leakline.study import Study as Study
    from leakline.study import grid as grid
    from leakline.study import load as load
    from leakline.weights import Layout as Layout
    from leakline.weights import Weights as Weights


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'leakline' has no attribute {name!r}")
    found = importlib.import_module(f"leakline.{name}") if home == "" else getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
