"""Archives: the results of stores in one file, the same bytes every time, merged by cell, and nothing else taken in."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from leakline.errors import StoreError
from leakline.report.tables.menu import every_table, render
from leakline.results import read
from leakline.results.archive import SLIM, read_archive, write_archive
from leakline.study.files import SEAL, Lines, read_json, write_json, write_lines
from leakline.study.run import run_study
from leakline.study.spec import parse

JUDGED = """
name = "judged"
noise = "seeded"
data = { use = "digits", clients = 2, client_test = 0.2 }
model = { use = "linear" }
training = { rounds = 3, learning_rate = 0.2, evaluate = "clients" }
"""


def keep_seed(root: Path, seed: int) -> None:
    """Leave the cells of one seed in the grid, as if the others had been run elsewhere."""
    grid = read_json(root / "study.json")
    cells = [cell for cell in grid["cells"] if cell["labels"]["seed"] == seed]
    write_json(root / "study.json", {**grid, "cells": cells})


def test_every_table_of_an_archive_is_the_stores(root: Path, tmp_path: Path) -> None:
    assert write_archive([root], tmp_path / "tiny.zip") == 4
    ours, theirs = read_archive(tmp_path / "tiny.zip"), read(root)
    assert [c.readings for c in ours.cells] == [c.readings for c in theirs.cells]
    assert [c.card for c in ours.cells] == [c.card for c in theirs.cells]
    for name in ("utility", "attacks", "promises", "readings"):
        if name in every_table():
            assert render(every_table()[name](ours), "csv") == render(every_table()[name](theirs), "csv"), name
    assert not ours.damaged


def test_an_archive_holds_no_models_and_is_the_same_bytes_again(root: Path, tmp_path: Path) -> None:
    write_archive([root], tmp_path / "a.zip")
    write_archive([tmp_path / "a.zip"], tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        assert {Path(name).suffix for name in packed.namelist()} == {".json", ".jsonl", ".toml"}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose clients judge the model with records of their own."""
    root = tmp_path_factory.mktemp("store") / "judged"
    assert not any(o.error for o in run_study(parse(JUDGED), root, workers=1))
    return root


def test_a_slim_one_keeps_every_mean_and_single_clients_last_round(judged: Path, tmp_path: Path) -> None:
    root = judged
    write_archive([root], tmp_path / "a.zip", slim=True)
    write_archive([tmp_path / "a.zip"], tmp_path / "b.zip", slim=True)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    ours, theirs = read_archive(tmp_path / "a.zip"), read(root)
    assert not ours.damaged
    assert ours.notes == (*theirs.notes, SLIM)
    for slim, whole in zip(ours.cells, theirs.cells, strict=True):
        last = max(r.round for r in whole.readings)
        assert slim.readings == tuple(r for r in whole.readings if r.client is None or r.round == last)
        assert 0 < len(slim.readings) < len(whole.readings)
        assert (slim.status, slim.card, slim.attacks) == (whole.status, whole.card, whole.attacks)


def test_what_a_slim_one_cannot_vouch_for_stays_as_it_is(judged: Path, tmp_path: Path) -> None:
    """Lines without seals, as other tools write them, are not sealed by leaving others out."""
    root = Path(shutil.copytree(judged, tmp_path / "judged"))
    for path in root.glob("runs/*/readings.jsonl"):
        rows = [{k: v for k, v in json.loads(row).items() if k != SEAL} for row in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_archive([root], tmp_path / "a.zip", slim=True)
    ours, theirs = read_archive(tmp_path / "a.zip"), read(root)
    assert [c.readings for c in ours.cells] == [c.readings for c in theirs.cells]


def test_seeds_from_two_places_become_one(root: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    write_archive([root], tmp_path / "all.zip")
    keep_seed(root, 0)
    keep_seed(other, 1)
    assert write_archive([root], tmp_path / "zero.zip") == 2
    assert write_archive([tmp_path / "zero.zip", other], tmp_path / "both.zip") == 4
    together, whole = read_archive(tmp_path / "both.zip"), read_archive(tmp_path / "all.zip")

    def accuracy(results: object) -> dict[str, str]:
        chosen = results.where(attack="utility", measure="accuracy", client=None).last()  # type: ignore[attr-defined]
        return {name: str(cells.over_seeds()) for name, cells in chosen.by("defence").items()}

    assert accuracy(together) == accuracy(whole)


def test_cells_that_share_a_run_keep_what_was_measured_of_it_in_either_place(root: Path, tmp_path: Path) -> None:
    """A second scenario of the same federation, attacked elsewhere: one copy of the run took the other's place."""
    other = Path(shutil.copytree(root, tmp_path / "other"))
    grid = read_json(root / "study.json")
    cell = next(cell for cell in grid["cells"] if cell["attacks"])
    path = Path("runs", cell["run"], "attacks.jsonl")
    line = {**Lines.read(other / path).good[0], "attack": "elsewhere-1", "by": "elsewhere"}
    write_lines(other / path, [line, {"measure": "none", "value": 1, "attack": "elsewhere-1"}])
    again = {**cell, "labels": {**cell["labels"], "scenario": "again"}, "attacks": ["elsewhere-1"]}
    write_json(other / "study.json", {**grid, "cells": [again]})
    for order in ([root, other], [other, root]):
        write_archive(order, tmp_path / "both.zip")
        found = read_archive(tmp_path / "both.zip")
        assert not found.damaged
        for one in (cell, again):
            (kept,) = (c for c in found.cells if c.labels == one["labels"])
            assert {key.rpartition("-")[0] for key in one["attacks"]} <= {r.by for r in kept.attacks}


def test_two_runs_of_one_cell_are_refused(root: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    grid = read_json(other / "study.json")
    first, second = grid["cells"][0], grid["cells"][1]
    first["run"], second["run"] = second["run"], first["run"]
    write_json(other / "study.json", grid)
    with pytest.raises(StoreError, match="two runs of one cell"):
        write_archive([root, other], tmp_path / "both.zip")
    assert not (tmp_path / "both.zip").exists()


def test_two_studies_are_refused(root: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    write_json(other / "study.json", {**read_json(other / "study.json"), "name": "another"})
    with pytest.raises(StoreError, match="two studies"):
        write_archive([root, other], tmp_path / "both.zip")


def test_what_is_not_finished_stays_out(root: Path, tmp_path: Path) -> None:
    key = read_json(root / "study.json")["cells"][0]["run"]
    (root / "runs" / key / "end.json").unlink()
    assert write_archive([root], tmp_path / "three.zip") == 3
    for folder in (root / "runs").iterdir():
        (folder / "end.json").unlink(missing_ok=True)
    with pytest.raises(StoreError, match="no cell of these is finished"):
        write_archive([root], tmp_path / "none.zip")


@pytest.mark.parametrize("name", ["../study.json", "/study.json", "runs/../../x/run.json", "runs/a/media/x.png", "x"])
def test_strange_names_are_refused(root: Path, tmp_path: Path, name: str) -> None:
    write_archive([root], tmp_path / "bad.zip")
    with zipfile.ZipFile(tmp_path / "bad.zip", "a") as packed:
        packed.writestr(name, "{}")
    with pytest.raises(StoreError, match="none of a store's results"):
        read_archive(tmp_path / "bad.zip")


def test_a_bomb_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("study.json", b" " * (65 * 2**20))
    with pytest.raises(StoreError, match="larger than results are"):
        read_archive(tmp_path / "bomb.zip")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"no zip"])
def test_what_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(StoreError, match="cannot be read"):
        read_archive(tmp_path / "x.zip")


def test_a_changed_figure_is_noticed(root: Path, tmp_path: Path) -> None:
    write_archive([root], tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as packed, zipfile.ZipFile(tmp_path / "b.zip", "w") as forged:
        for info in packed.infolist():
            content = packed.read(info)
            if info.filename.endswith("readings.jsonl"):
                line, rest = content.split(b"\n", 1)
                content = json.dumps({**json.loads(line), "value": 0.999}).encode() + b"\n" + rest
            forged.writestr(info.filename, content)
    assert {cell.status for cell in read_archive(tmp_path / "b.zip").cells} == {"unreadable"}


def test_the_verb(root: Path, leakline) -> None:
    code, said, wrong = leakline("archive", root, "-o", "tiny.zip")
    assert code == 0, wrong
    assert "4 cells" in said
    exported = [leakline("export", store, "--table", "utility")[1] for store in ("tiny.zip", root)]
    assert exported[0] == exported[1] != ""
    assert leakline("archive", root, "-o", "tiny.tar")[0] == 2
    assert "4 cells" in leakline("archive", root, "-o", "slim.zip", "--slim")[1]
    assert leakline("export", "slim.zip", "--table", "utility")[1] == exported[1]
    assert leakline("report", "tiny.zip", "-o", "page.html")[0] == 0
