"""A store made by really running a tiny study, and a page reader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

STUDY = """
name = "tiny"
title = "Two clients, two rounds"
seeds = [0, 1]
noise = "seeded"
[data]
use = "digits"
clients = 2
[model]
use = "small-cnn"
channels = [4, 4]
hidden = 8
[training]
rounds = 2
epochs = 3
batch = 16
learning_rate = 0.2
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
none = []
global-dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]
[[attacks]]
use = "loss-threshold"
records = 100
"""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from leakline.study.run import run_study
    from leakline.study.spec import parse

    root = tmp_path_factory.mktemp("store") / "tiny"
    outcomes = list(run_study(parse(STUDY), root, workers=1))
    assert [o.error for o in outcomes] == ["", "", "", ""]
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "tiny"))


@pytest.fixture
def edit() -> Callable[..., Any]:
    """Change a JSON file of a store in place."""

    from hostile_store import edit as change

    return change


@pytest.fixture
def opens() -> Callable[[Path], dict[str, int]]:
    """How often each file of a store is opened while its report is made."""

    def count(root: Path) -> dict[str, int]:
        script = Path(__file__).with_name("opens.py")
        done = subprocess.run([sys.executable, str(script), str(root)], capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout))

    return count


class Page(HTMLParser):
    """What a browser would make of a page: elements with attributes, scripts and styles with their text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.raw: list[tuple[str, dict[str, str], str]] = []
        self.words: list[str] = []
        self._open: tuple[str, dict[str, str]] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {k: v or "" for k, v in attrs}
        self.elements.append((tag, named))
        self._open = (tag, named) if tag in ("script", "style") else None
        if self._open:
            self.raw.append((tag, named, ""))

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open:
            tag, named, text = self.raw[-1]
            self.raw[-1] = (tag, named, text + data)
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def read_page() -> Callable[[Path], Page]:
    return lambda path: Page(path.read_text(encoding="utf-8"))
