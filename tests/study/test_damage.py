"""Damage to a store: none of it is silent, none of it ends in a traceback, and what is left is what was measured."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from leakline.errors import LeaklineError
from leakline.report.tables import menu as tables
from leakline.results import read
from leakline.study.run import run_study
from leakline.study.spec import parse
from leakline.study.store import Store
from leakline.study.verify import verify

STUDY = """\
name = "damaged"
seeds = [0, 1]
noise = "seeded"
[data]
use = "digits"
limit = 100
clients = 3
[model]
use = "mlp"
hidden = [4]
[training]
rounds = 3
[strategies]
fedavg = { use = "fedavg", weighting = "even" }
[defences]
none = []
dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]
[[attacks]]
use = "loss-threshold"
records = 40
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("store") / "whole"
    assert not [o.error for o in run_study(parse(STUDY), root, workers=1) if o.error]
    return root


@pytest.fixture(scope="module")
def unfinished(whole, tmp_path_factory) -> Path:
    """The same store, as if the last run had been killed after its last round."""
    root = tmp_path_factory.mktemp("store") / "unfinished"
    shutil.copytree(whole, root)
    last = root / "runs" / str(Store(root).grid()["cells"][-1]["run"])
    for name in ("end.json", "attacks.jsonl"):
        (last / name).unlink()
    return root


def shown(root: Path) -> list[object]:
    """Everything that a reader is told: tables, and what is missing or damaged."""
    results = read(root)
    told = [tables.utility, tables.measures, tables.attacks, tables.cards, tables.runs]
    return [*(make(results).rows for make in told), results.text]


def hurt(root: Path, rng: random.Random) -> str:
    """One flipped bit, cut, deleted line or deleted file somewhere in a store."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and not p.name.startswith("."))  # claims hold nothing
    path = rng.choice(files)
    data = path.read_bytes()
    kind = rng.choice(["flip", "flip", "cut", "line", "file"]) if data else "file"
    if kind == "flip":
        at = rng.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
    elif kind == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif kind == "line":
        lines = data.splitlines(keepends=True)
        del lines[rng.randrange(len(lines))]
        path.write_bytes(b"".join(lines))
    else:
        path.unlink()
    return f"{kind} of {path.relative_to(root)}"


def check(root: Path, what: str, before: list[object], known: list[str]) -> None:
    try:
        after = shown(root)
        results = read(root)
    except LeaklineError:
        return
    if after != before:
        assert results.damaged or [m.what for m in results.missing] != known, f"{what}: a table changed without a word"
    try:
        problems = verify(root).problems
    except LeaklineError:
        return
    if after != before:
        assert problems or results.missing, f"{what}: verify saw nothing"


def many(store: Path, tmp_path: Path, seed: int, count: int) -> None:
    before, known = shown(store), [m.what for m in read(store).missing]
    rng = random.Random(seed)
    for number in range(count):
        root = tmp_path / str(number)
        shutil.copytree(store, root)
        check(root, hurt(root, rng), before, known)
        shutil.rmtree(root)


@pytest.mark.parametrize("name", ["whole", "unfinished"])
def test_no_damage_is_silent(name, tmp_path, request):
    many(request.getfixturevalue(name), tmp_path, 1, 25)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole", "unfinished"])
def test_no_damage_is_silent_at_length(name, tmp_path, request):
    many(request.getfixturevalue(name), tmp_path, 2, 100)


def test_a_whole_store_is_verified(whole):
    verified = verify(whole)
    assert verified.problems == ()
    assert verified.unchecked == ()
    assert verified.runs == 4


def test_every_flipped_bit_of_a_checkpoint_or_a_line_is_seen_by_verify(whole, tmp_path):
    rng = random.Random(3)
    run = next(p for p in sorted((whole / "runs").iterdir()))
    for name in ("checkpoint.safetensors", "rounds.jsonl", "readings.jsonl", "attacks.jsonl", "run.json", "end.json"):
        for number in range(6):
            root = Path(shutil.copytree(whole, tmp_path / f"{name}-{number}"))
            path = root / "runs" / run.name / name
            data = bytearray(path.read_bytes())
            at = rng.choice([i for i, c in enumerate(data) if chr(c).isalnum()])
            data[at] ^= 1
            path.write_bytes(data)
            assert verify(root).problems, f"{name} at {at}"


def test_a_card_that_does_not_follow_from_the_lines_is_seen(whole, tmp_path):
    from leakline.study.files import read_json, write_json

    root = Path(shutil.copytree(whole, tmp_path / "copy"))
    cell = next(c for c in Store(root).grid()["cells"] if c["labels"]["defence"] == "dp")
    path = root / "runs" / cell["run"] / "end.json"
    end = read_json(path)
    end["card"]["promises"][0]["epsilon"] /= 2
    write_json(path, end)  # sealed again: somebody who knows how
    assert any("promises do not follow" in text for text in verify(root).problems)


def test_the_command_line_says_what_it_leaves_out(whole, tmp_path, leakline):
    root = Path(shutil.copytree(whole, tmp_path / "copy"))
    run = Store(root).grid()["cells"][0]["run"]
    path = root / "runs" / run / "readings.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1].replace(b"0.", b"9.", 1), *lines[2:]]))
    code, _, err = leakline("export", root, "--table", "utility")
    assert code == 0
    assert f"damaged, left out: {run}: readings.jsonl line 2 is damaged and left out" in err
    code, _, err = leakline("verify", root)
    assert code == 2
    assert "readings.jsonl line 2" in err
    assert leakline("verify", whole)[0] == 0


def test_an_attack_that_was_cut_short_is_done_again(whole, tmp_path):
    expected = {p.name: (p / "attacks.jsonl").read_bytes() for p in (whole / "runs").iterdir()}
    for cut in (7, 100, 400, 900):
        root = Path(shutil.copytree(whole, tmp_path / str(cut)))
        for run in (root / "runs").iterdir():
            data = (run / "attacks.jsonl").read_bytes()
            (run / "attacks.jsonl").write_bytes(data[: max(len(data) - cut, 3)])
        assert all(m.what in ("damaged", "no reading of loss-threshold") for m in read(root).missing)
        assert read(root).missing
        assert not [o.error for o in run_study(parse(STUDY), root, workers=1) if o.error]
        assert {p.name: (p / "attacks.jsonl").read_bytes() for p in (root / "runs").iterdir()} == expected
        shutil.rmtree(root)


def test_lines_of_earlier_rounds_that_are_damaged_stop_a_run_from_going_on(whole, tmp_path):
    root = Path(shutil.copytree(whole, tmp_path / "copy"))
    run = root / "runs" / Store(root).grid()["cells"][0]["run"]
    (run / "end.json").unlink()
    lines = (run / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (run / "rounds.jsonl").write_bytes(b"".join(lines[1:]))
    first, *others = run_study(parse(STUDY), root, workers=1)
    assert "rounds.jsonl: lines of rounds before 2 are damaged or missing" in first.error
    assert not [o.error for o in others if o.error]


def test_another_delta_gives_another_epsilon_and_trains_nothing(whole, tmp_path):
    root = Path(shutil.copytree(whole, tmp_path / "copy"))
    outcomes = list(run_study(parse("delta = 1e-9\n" + STUDY), root, workers=1))
    assert not any(o.trained for o in outcomes)
    before, after = (
        [c.card.promises[0].epsilon for c in read(r).cells if c.label("defence") == "dp"] for r in (whole, root)
    )
    assert all(b < a for b, a in zip(before, after, strict=True))
    assert verify(root).problems == ()


def test_files_are_for_their_owner_only(whole):
    assert {oct(p.stat().st_mode & 0o777) for p in whole.rglob("*") if p.is_dir()} == {"0o700"}
    assert {oct(p.stat().st_mode & 0o777) for p in whole.rglob("*") if p.is_file()} == {"0o600"}
