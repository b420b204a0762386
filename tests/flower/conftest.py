"""Flower is imported once, before any test: what its own imports warn about is not ours to mend."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401

from leakline.flower.trial.certificates import make_certificates


@pytest.fixture
def certificates(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    make_certificates(tmp_path)
    return tmp_path
