"""What a run directory knows of its clients' data, so that a run is the same one whoever is there when it goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leakline.study.files import read_json, write_atomically

FILE = "nodes.json"
Facts = Mapping[str, Mapping[str, Any]]


class Known:
    """The clients of a study in a run directory: what each node said of its data when it began, or that it was away.

    ``about``: which study it is; with other settings it is another one, which knows nothing yet.
    """

    def __init__(self, out: Path, about: str) -> None:
        self.file, self.about = out / FILE, hashlib.sha256(about.encode()).hexdigest()[:16]

    def _all(self) -> dict[str, Any]:
        return read_json(self.file) if self.file.is_file() else {}

    def facts(self, names: Sequence[str], there: Facts) -> dict[str, Mapping[str, Any]]:
        """How each client is to be described now; one of whom nothing may be known is left out.

        One that is away is as it was. One that was away when the study began stays as unknown as it was: with its data
        written down it would be another run, from the first round.
        """
        kept = self._all().get(self.about, {})
        facts: dict[str, Mapping[str, Any]] = {}
        for name in names:
            if name in there and (there[name].get("simulated") or kept.get(name, {}) is not None):
                facts[name] = there[name]
            elif kept.get(name) is not None:
                facts[name] = {"facts": kept[name]}
        return facts

    def keep(self, names: Sequence[str], there: Facts) -> None:
        """Write down what the study begins with."""
        facts = self.facts(names, there)
        mine = {name: facts[name].get("facts") if name in facts else None for name in names}
        write_atomically(self.file, json.dumps({**self._all(), self.about: mine}, indent=1).encode())
