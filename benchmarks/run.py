"""Run benchmarks and print their tables: ``run.py [NAME ...] [--repeats N] [--json PATH]``.

Every other file here with a ``main(repeats) -> list[Row]`` is a benchmark of that name.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import platform
import sys
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rows import Row

HERE = Path(__file__).parent


def names() -> list[str]:
    """The benchmarks that exist: files here that define ``main``, in alphabetical order."""
    found = []
    for path in sorted(HERE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defines = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
        if defines and path.stem != "run":
            found.append(path.stem)
    return found


def show(rows: list[Row], console: Console) -> None:
    """Print one table for each ``table`` of the rows."""
    for title, part in groupby(rows, key=lambda row: row.table):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        for heading in ("measure", "value", "goal", "", "medians"):
            table.add_column(heading, justify="right" if heading == "value" else "left")
        for row in part:
            verdict = {True: "met", False: "NOT MET", None: ""}[row.met]
            table.add_row(row.measure, f"{row.value:.3g} {row.unit}", row.goal, verdict, row.note)
        console.print(table)


def load() -> str:
    """The load averages of 1, 5 and 15 minutes."""
    return "load average " + " ".join(f"{value:.2f}" for value in os.getloadavg())


def main() -> int:
    """Run what was asked for; 1 if a goal was missed or a benchmark failed."""
    known = names()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(known)} (default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(known))
    if unknown or options.repeats < 1:
        parser.error(f"no such benchmark: {', '.join(unknown)}" if unknown else "--repeats must be at least 1")
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; start: {load()}")
    rows: list[Row] = []
    for name in options.names or known:
        made = importlib.import_module(name).main(options.repeats)
        show(made, console)
        rows += made
    console.print(f"end: {load()}")
    missed = [row for row in rows if row.met is False]
    console.print(f"{len(rows)} figures, {sum(row.met is True for row in rows)} goals met, {len(missed)} missed")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) | {"met": row.met} for row in rows], indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
