"""How long a user waits for ``import leakline`` and ``leakline --help``."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from rows import Row, interleaved

COMMAND = Path(sys.executable).with_name("leakline")


def main(repeats: int) -> list[Row]:
    """Wall time of fresh processes; at least ten of each, whatever ``repeats``."""
    cases = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import leakline": [sys.executable, "-c", "import leakline"],
        "leakline --help": [str(COMMAND), "--help"],
    }
    times = interleaved(
        {name: lambda c=command: subprocess.run(c, check=True, capture_output=True) for name, command in cases.items()},  # type: ignore[misc]
        max(10, repeats),
    )
    goals = {"import leakline": 0.5, "leakline --help": 0.7}
    return [
        Row("Start", name, statistics.median(taken), "s", goals.get(name), note=f"slowest {max(taken):.2f} s")
        for name, taken in times.items()
    ]
