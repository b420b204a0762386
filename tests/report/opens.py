"""Run as a script: make the report of a store, and print how often each file was opened.

An audit hook stays for as long as its process, so this is a process of its own.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory


def main(root: Path) -> None:
    """Count the files of the store that are opened for reading."""
    from leakline.report.page.build import build_report
    from leakline.results import read

    opened: Counter[str] = Counter()

    def watch(event: str, given: tuple[object, ...]) -> None:
        if event == "open" and str(given[0]).startswith(str(root)) and "w" not in str(given[1]):
            opened[str(Path(str(given[0])).relative_to(root))] += 1

    sys.addaudithook(watch)
    with TemporaryDirectory() as folder:
        build_report(read(root), Path(folder) / "report.html")
    print(json.dumps(opened))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
