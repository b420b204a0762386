"""The reference of study files as a page of text, made from the menus and settings themselves (docs/study-file.md).

Keys of menu entries are explained by the entries' own docstrings; keys of the study's own tables by `MEANINGS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from inspect import getdoc
from typing import Any

from leakline import attacks, data, defences, models, strategies, utility
from leakline.bench.training import Plan
from leakline.study.build import parameters
from leakline.study.data_table import SHARING
from leakline.study.meanings import MEANINGS
from leakline.study.model_table import ADAPTING
from leakline.study.scenario import LOOP, STUDY
from leakline.study.values import Keys, described, kind, sample

HEAD = """\
# The study file

<!-- Made by: leakline schema --markdown > docs/study-file.md -->

A study is a TOML file, and a study is a grid: scenarios x strategies x defences x sweeps (`-s key=v1,v2`) x seeds.
Each square is a federation that is trained once; every attack meets every square. `leakline check` says everything that
is wrong with a file at once, with line, key and the nearest good one. `leakline schema` prints the same reference as a
JSON schema, by which editors complete and check.

An entry of a menu is a name (`model = "mlp"`) or a table with `use` (`model = { use = "mlp", hidden = [32] }`). Code of
your own stands in a file beside the study, `use = "file:name"`, and its arguments are its keys. Paths are looked for
beside the study, then in the current folder.
"""


def markdown() -> str:
    """The whole page."""
    plan = {name: wanted for name, wanted in parameters(Plan).items() if name != "proximal"}
    menus: tuple[tuple[str, str, Mapping[str, Callable[..., Any]]], ...] = (
        ("Data sets", "For `use` in [data].", data.DATASETS),
        ("Partitions", "For `partition` in [data].", data.PARTITIONERS),
        ("Features", "For `features` in [data].", data.FEATURES),
        ("Plants", "For `plant` in [data].", data.PLANTS),
        ("Models", "For `model` and `models`.", models.MENU),
        ("Strategies", "For `strategies`.", strategies.MENU),
        ("Defences", "For `defences`.", defences.MENU),
        ("Attacks", "For `attacks`; each may have a `name` of its own beside its keys.", attacks.MENU),
    )
    parts = [HEAD, "## At the top\n", _table(STUDY), "## [data]\n\nBeside `use` and the data set's own keys:\n"]
    parts += [_table(SHARING), "## [training]\n\nThe loop:\n", _table(LOOP), "The clients' recipe:\n", _table(plan)]
    parts += ["## Any model\n\nBeside a model's own keys (docs/fewer-parameters.md):\n", _table(ADAPTING)]
    losses = "\n".join(f"- `{name}` ({loss.kind}): {loss.meaning}" for name, loss in utility.MENU.items())
    parts += ["## Losses\n\nFor `loss` in [training].\n", f"{losses}\n"]
    for title, intro, menu in menus:
        parts += [f"## {title}\n\n{intro}\n", *(part for name, entry in menu.items() for part in _entry(name, entry))]
    return "\n".join(parts)


def _table(keys: Keys) -> str:
    """Keys of a table of the study's own: meaning, what it may be, default, example."""
    lines = ["| key | meaning | may be | by default | example |", "| --- | --- | --- | --- | --- |"]
    for name, (hint, default) in keys.items():
        meaning, shown = (_cell(text) for text in MEANINGS.get(name, ("", "")))
        lines.append(f"| `{name}` | {meaning} | {_cell(kind(described(hint)))} | {_default(default)} | `{shown}` |")
    return "\n".join(lines) + "\n"


def _entry(name: str, entry: Callable[..., Any]) -> Iterator[str]:
    """An entry of a menu: its docstring, an example, and its keys."""
    yield f"### {name}\n"
    yield f"{_prose(getdoc(entry) or '')}\n"
    keys = parameters(entry)
    yield f"```text\n{example(name, keys)}\n```\n"
    if keys:
        lines = ["| key | may be | by default |", "| --- | --- | --- |"]
        lines += [f"| `{key}` | {_cell(kind(described(hint)))} | {_default(d)} |" for key, (hint, d) in keys.items()]
        yield "\n".join(lines) + "\n"


def example(name: str, keys: Keys) -> str:
    """A table that names an entry, with values for all that it cannot do without."""
    needed = {key: sample(described(hint)) for key, (hint, default) in keys.items() if default is ...}
    return "{ " + ", ".join([f'use = "{name}"', *(f"{key} = {value}" for key, value in needed.items())]) + " }"


def _default(default: Any) -> str:
    if default is ...:
        return "**needed**"
    plain = json.loads(json.dumps(default, default=lambda value: None))
    if default is None or plain is None:
        return "left out"
    return f"`{_cell(json.dumps(plain))}`"


def _prose(text: str) -> str:
    """A docstring in Markdown: double backticks become single ones, set-in lines a block of text."""
    lines, out, inside = text.replace("``", "`").splitlines(), list[str](), False
    for i, line in enumerate(lines):
        set_in = line.startswith("  ") or (inside and not line and i + 1 < len(lines) and lines[i + 1].startswith("  "))
        if set_in != inside:
            out += ["```text"] if set_in else ["```"]
            inside = set_in
        out.append(line if inside else re.sub(r"(?<![`\w])\[([\w, .]+)\](?!\()", r"\\[\1]", line))
    return "\n".join([*out, "```"] if inside else out).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
