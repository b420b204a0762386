"""What the README shows must run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert len(found) == 1
    return found[0]


def run(arguments: list[str], cwd: Path) -> str:
    done = subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_runs(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block("python"))
    printed = run([sys.executable, "example.py"], tmp_path).splitlines()
    assert [line.split()[0] for line in printed[:3]] == ["0", "1", "2"]
    assert (tmp_path / printed[-1] / "study.json").is_file()


@pytest.mark.parametrize("command", [("check",), ("run", "-s", "seeds=0")], ids=lambda words: words[0])
def test_the_study_file_runs(tmp_path: Path, command: tuple[str, ...]) -> None:
    """With one of its seeds: the others are the same again."""
    (tmp_path / "study.toml").write_text(block("toml"))
    verb, *options = command
    printed = run([sys.executable, "-m", "leakline.cli", verb, "study.toml", *options], tmp_path)
    assert "epsilon = 4.98" in printed
    assert (tmp_path / "runs/which-defence/report.html").exists() is (verb == "run")


def test_it_names_both_commands() -> None:
    assert "make demo" in README
    assert "make test" in README


def test_the_picture_is_there_and_has_words() -> None:
    ((words, path),) = re.findall(r"!\[([^\]]+)\]\((\S+\.png)\)", README)
    assert len(words.split()) > 20
    data = (Path(__file__).parent.parent / path).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 1440
    assert len(data) < 400_000


def test_it_keeps_its_order() -> None:
    """One sentence, two commands, a ten-line study, the picture, what is different, links."""
    places = [
        README.index(part)
        for part in ("**What does", "make demo", "```toml", "![", "## What is different", "## Read on")
    ]
    assert places == sorted(places)
    assert len([line for line in block("toml").splitlines() if line]) == 10
