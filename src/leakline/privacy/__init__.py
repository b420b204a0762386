"""What is formally promised: claims, the accountant that reads them, and the noise that buys them."""

from .accountant import account, allowed, group, replace_one, total_mu, violated
from .calibrate import Unreachable, calibrate, noise_for
from .claims import Adjacency, Claim, Event, Gaussian, Guarantee, NoClaim, Promise, Pure, Seat, Unit
from .gdp import gdp_delta, gdp_epsilon, gdp_mu

__all__ = [
    "Adjacency",
    "Claim",
    "Event",
    "Gaussian",
    "Guarantee",
    "NoClaim",
    "Promise",
    "Pure",
    "Seat",
    "Unit",
    "Unreachable",
    "account",
    "allowed",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "group",
    "calibrate",
    "noise_for",
    "replace_one",
    "total_mu",
    "violated",
]
