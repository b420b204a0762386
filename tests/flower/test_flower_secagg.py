"""docs/recordings.md says that Flower's secure aggregation cannot be had with its Message API: is that still so?"""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("flwr", reason="needs leakline[flower]")


def test_flowers_protocol_is_not_among_the_public_names():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's deprecations
        import flwr.app
        import flwr.clientapp
        import flwr.clientapp.mod
        import flwr.serverapp
        import flwr.serverapp.strategy
    places = (flwr.app, flwr.clientapp, flwr.clientapp.mod, flwr.serverapp, flwr.serverapp.strategy)
    names = [name for place in places for name in getattr(place, "__all__", dir(place))]
    assert not [name for name in names if "secagg" in name.lower() or "secure" in name.lower()]
