"""A store whose every text tries to break out of where it is shown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakline.study.files import read_json, read_lines, write_json

ATTACKS_ON_TEXT = json.loads((Path(__file__).parent / "report" / "hostile.json").read_text())


def edit(path: Path, how: Callable[[Any], None]) -> None:
    """Change a JSON file of a store in place."""
    table = read_json(path)
    how(table)
    write_json(path, table)


def poison(root: Path) -> None:
    """Put hostile texts into names, notes, labels, cards, settings and readings of a store."""
    texts = itertools.cycle(ATTACKS_ON_TEXT)

    def names(grid):
        grid["title"], grid["name"] = " ".join(t for t in ATTACKS_ON_TEXT if len(t) < 99), next(texts)
        grid["notes"] = ATTACKS_ON_TEXT
        for cell in grid["cells"][:2]:
            cell["labels"] |= {
                "defence": ATTACKS_ON_TEXT[0],
                "strategy": "$\\frac{1}{0}$",
                "value": ATTACKS_ON_TEXT[1],
            }
        for i, cell in enumerate(grid["cells"][2:]):
            cell["labels"] |= {
                "scenario": next(texts),
                "defence": ("_hidden", "&lt;b&gt;")[i % 2],
                next(texts): next(texts),
                "sweep": [1, {"a": 2}],
            }
        grid["cells"] += [{"labels": {"defence": t, "seed": t}, "run": None, "error": t} for t in ATTACKS_ON_TEXT]

    edit(root / "study.json", names)
    for run in (root / "runs").iterdir():

        def card(end):
            promise = end["card"]["promises"][0]
            promise |= {
                "reason": next(texts),
                "unit": next(texts),
                "defence": next(texts),
                "assumptions": [next(texts)],
            }
            end["card"] |= {"stamp": next(texts), "dropped": ATTACKS_ON_TEXT, "broken": [next(texts)]}

        def about(found):
            found["federation"]["task"]["name"] = next(texts)
            found["federation"]["model"][next(texts)] = next(texts)
            found["federation"]["task"]["clients"] = {t: {} for t in ATTACKS_ON_TEXT}
            found["versions"]["torch"] = next(texts)

        edit(run / "end.json", card)
        edit(run / "run.json", about)
        lines = [line for line in read_lines(run / "attacks.jsonl") if line["measure"] != "none"]
        changed = [
            {**line, "by": ATTACKS_ON_TEXT[i], "measure": t} for i, line in enumerate(lines) for t in ATTACKS_ON_TEXT
        ]
        (run / "attacks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
