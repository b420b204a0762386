"""What the documentation shows must be so: its code runs, its commands exist, its names and links lead somewhere.

Blocks, by their language:
    python    run, a page at a time, top to bottom in one module; a first line "# name.py" makes it a file instead
    py        must be Python, and is not run
    toml      a study (it has ``name`` and ``data``) must be readable; a first line "# name.toml" makes it a file
    console   commands after "$ " are run in the page's folder, and what they print must be what is shown, up to numbers
    sh        commands must exist with these options; they are not run
    text      is not looked at
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import leakline
from leakline.errors import LeaklineError
from leakline.study import spec

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer imports names that newer clicks deprecate
    import click
    import typer.main
    from click.testing import CliRunner

    from leakline.cli import app
    from leakline.cli.list import MENUS, menu

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
LANGUAGES = ("python", "py", "toml", "console", "sh", "text")
COMMAND = typer.main.get_command(app)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its lines, and the page's line number of its first one."""

    language: str
    lines: list[str]
    line: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def file(self) -> str:
        """The file that a block is to be saved as, or ""."""
        found = re.fullmatch(r"# ([\w-]+\.(?:py|toml))", self.lines[0]) if self.lines else None
        return found[1] if found else ""


def blocks(page: Path) -> Iterator[Block]:
    lines, opened = page.read_text(encoding="utf-8").splitlines(), -1
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opened < 0:
            opened = number
        else:
            yield Block(lines[opened][3:].strip(), lines[opened + 1 : number], opened + 2)
            opened = -1
    assert opened < 0, f"{page.name}:{opened + 1}: this block is never closed"


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def spans(page: Path) -> list[str]:
    """All that the prose sets as code; a span may go on in the next line of its paragraph."""
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", prose(page))]
    return [span for p in paragraphs for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", p)]


# Code


@dataclass
class Reader:
    """Somebody who follows a page in a folder of their own."""

    page: Path
    folder: Path
    module: Any

    def follow(self, block: Block) -> None:
        if block.file:
            (self.folder / block.file).write_text(repeatable(block), encoding="utf-8")
        elif block.language == "python":
            # Blank lines before it give tracebacks the page's own line numbers; a file gives classes their source.
            source = "\n" * (block.line - 1) + block.text
            Path(self.module.__file__).write_text(source, encoding="utf-8")
            exec(compile(source, self.module.__file__, "exec"), self.module.__dict__)
        elif block.language == "py":
            compile(block.text, self.page.name, "exec")
        elif block.language == "console":
            self.type(block)
        if block.language == "toml" and {"name", "data"} <= tomllib.loads(block.text).keys():
            spec.parse(block.text, block.file or self.page.name, trust=True)

    def type(self, block: Block) -> None:
        for command, shown in sessions(block):
            words = shlex.split(command, comments=True)
            if words[0] == "python":
                printed = run_python(words[1:], self.folder)
            else:
                assert words[0] == "leakline", f"{self.page.name}:{block.line}: only leakline and python are run"
                done = CliRunner().invoke(COMMAND, words[1:], terminal_width=80, env={"COLUMNS": "80"})
                printed = done.output
                if isinstance(done.exception, LeaklineError):
                    printed += str(done.exception)  # as the installed script prints it
                elif done.exception is not None and not isinstance(done.exception, SystemExit):
                    raise done.exception
            missing = not_printed(shown, printed)
            assert not missing, f"{self.page.name}:{block.line}: `{command}` does not print {missing!r} but\n{printed}"


def repeatable(block: Block) -> str:
    """A file as shown; a study's protective noise is seeded, so that a test comes out the same every time."""
    seeded = block.language == "toml" and "noise" not in tomllib.loads(block.text)
    return block.text.replace("\n", '\nnoise = "seeded"\n', 1) if seeded else block.text


def run_python(words: list[str], folder: Path) -> str:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def sessions(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for line in block.lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def not_printed(shown: list[str], printed: str) -> str:
    """The first shown line that was not printed after the one before, or "". Numbers may differ, "..." skips lines."""
    there = iter([skeleton(line) for line in printed.splitlines()])
    return next((line for line in shown if line.strip() != "..." and skeleton(line) not in there), "")


def skeleton(line: str) -> str:
    """A line without what differs from run to run: numbers, and how wide columns came out for them."""
    line = re.sub(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?", "#", line).replace("# cores", "# core")
    return re.sub(r"[\s─━]+", " ", line).strip()


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)  # README's code runs in test_readme.py
def test_what_a_page_shows_runs_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"page_{page.stem.replace('-', '_')}".lower()
    (tmp_path / f"{name}.py").touch()
    found = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
    assert found is not None
    module = importlib.util.module_from_spec(found)
    before = set(sys.modules)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    reader = Reader(page, tmp_path, module)
    try:
        for block in blocks(page):
            reader.follow(block)
    finally:
        for own in set(sys.modules) - before:  # model.py of one page is not that of the next
            if str(tmp_path) in str(getattr(sys.modules[own], "__file__", "")):
                del sys.modules[own]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    strange = [f"{page.name}:{b.line}: {b.language!r}" for b in blocks(page) if b.language not in LANGUAGES]
    assert not strange, f"one of {', '.join(LANGUAGES)} after the backquotes"


def test_own_images_and_an_own_model_take_fifteen_lines() -> None:
    files = {b.file: b.lines for b in blocks(ROOT / "docs/hospital.md") if b.file}
    written = [line for name in ("model.py", "study.toml") for line in files[name] if line and not line.startswith("#")]
    assert len(written) <= 15


# Commands


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Every leakline command of a page: of blocks, and of the prose where it is more than a name."""
    for block in blocks(page):
        if block.language in ("sh", "console", ""):
            for number, line in enumerate(block.lines, block.line):
                # What follows two spaces is a remark.
                line = re.split(r"\s{2,}|\s#", line.removeprefix("$ ").strip())[0]
                if line.startswith("leakline "):
                    yield f"{page.name}:{number}", shlex.split(line)[1:]
    for span in spans(page):
        if span.startswith("leakline "):
            yield f"{page.name}: `{span}`", shlex.split(span)[1:]


def problem_with(words: list[str]) -> str:
    """Why a command could not be typed, or "". A reader fills in "..." and DIR, and may leave out what is [so]."""
    if "..." in words or any(word.startswith("[") for word in words):
        return ""
    command, context, rest = COMMAND, click.Context(COMMAND, info_name="leakline"), words
    try:
        while isinstance(command, click.Group):
            if not rest or rest[0].startswith("-"):
                command.make_context("leakline", list(rest), resilient_parsing=True)
                return ""
            _, found, rest = command.resolve_command(context, list(rest))
            assert found is not None
            command = found
        if not rest and any(p.required for p in command.params):
            return ""  # a command by its name alone: `leakline audit`
        parsed = command.make_context(command.name, list(rest), parent=context)
    except click.ClickException as error:
        return error.format_message()
    given = parsed.params
    known: dict[str, Any] = {
        "what": MENUS,
        "table": [row["name"] for row in menu("tables")],
        "study": [row["name"] for row in menu("studies")],
    }
    for key, names in known.items():
        value = given.get(key)
        if value and value not in names and not value.endswith(".toml") and not value.isupper():
            return f"there is no {key} {value!r}"
    return ""


@each_page
def test_commands_exist_with_these_options(page: Path) -> None:
    wrong = [f"{where}: {said}" for where, words in commands(page) if (said := problem_with(words))]
    assert not wrong


def test_a_command_that_does_not_exist_would_be_found() -> None:
    assert problem_with(["rum", "quickstart"])
    assert problem_with(["run", "quickstart", "--worker", "2"])
    assert problem_with(["run", "quickstrat"])
    assert problem_with(["export", "DIR", "--table", "metric-privacy/99"])
    assert problem_with(["list", "defenses"])
    assert not problem_with(["run", "quickstart", "--workers", "2"])


# Names and links


def resolves(dotted: str) -> bool:
    """Whether a dotted name can be imported or reached by attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(found, part):
                return part in getattr(found, "__dataclass_fields__", {})
            found = getattr(found, part)
        return True
    return False


FOLDERS = ("src/", "tests/", "docs/", "benchmarks/")


@each_page
def test_names_and_files_of_the_project_exist(page: Path) -> None:
    for span in spans(page):
        if re.fullmatch(r"leakline(\.\w+)+(\(.*\))?", span):
            assert resolves(span.split("(")[0]), f"{page.name}: there is no {span}"
        elif span.startswith(FOLDERS):
            assert (ROOT / span.split()[0]).exists(), f"{page.name}: there is no file {span}"


def test_all_that_the_paper_to_code_map_names_exists() -> None:
    """Names, files, tables, studies and menu entries; what has a space or an equals sign is a setting or a command."""
    entries = {row["name"] for what in MENUS for row in menu(what)} | set(leakline.__all__)
    unknown = [
        span
        for span in spans(ROOT / "docs/paper-to-code.md")
        if not re.search(r"[ =]", span)
        and span not in entries
        and not resolves(span.split("(")[0])
        and not (ROOT / span).exists()
    ]
    assert not unknown


@each_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_file(), f"{page.name}: {target} leads nowhere"
        if anchor:
            assert anchor in headings(there), f"{page.name}: {path or page.name} has no heading {anchor}"


def headings(page: Path) -> set[str]:
    """Anchors as both GitHub and the site make them of plain headings."""
    found = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "")).strip().lower().replace(" ", "-") for h in found}


# The site


def test_the_site_builds_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site needs mkdocs: make docs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert {p.stem for p in DOCS} <= {p.stem for p in pages}
    for page in pages:
        assert not requests_of(page.read_text(encoding="utf-8")), page.name
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.findall(r"@import|url\(\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def requests_of(html: str) -> list[str]:
    """Addresses elsewhere that a browser would fetch to show a page; links that a reader may click are none."""
    tags = re.findall(r"<(?:script|link|img|iframe|source|video|audio|embed|object|base|form)\b[^>]*>", html, re.I)
    found = re.findall(r"""\b(?:src|href|srcset|data|action)\s*=\s*["']?((?:https?:)?//[^"'\s>]+)""", " ".join(tags))
    return found + re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)", html)


def test_a_request_would_be_found() -> None:
    assert requests_of('<link href="https://fonts.example/x.css" rel="stylesheet">')
    assert requests_of("<style>@import '//cdn.example/x.css'</style>")
    assert not requests_of('<a href="https://example.org">read</a>')
