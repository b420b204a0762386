"""Flower is imported once, before any test: what its own imports warn about is not ours to mend."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401
