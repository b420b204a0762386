"""Claims: one holder at a time, none that outlives its process, and none that is lost to a race."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import tiny
from leakline.errors import StoreError
from leakline.study import claims
from leakline.study.at_work import at_work
from leakline.study.cells import Study, grid
from leakline.study.claims import SILENCE, Busy, Holder, check_disk, claimed, holder_of, others, present
from leakline.study.store import Store
from leakline.study.train import train_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
CONTEXT = multiprocessing.get_context("fork")
ELSEWHERE = Holder("another machine", "node7", 4711, "12345", "0.0.1", "token")


def write(folder: Path, name: str, holder: Holder | str, age: float = 0.0) -> Path:
    """A claim as another process would have left it, so many seconds ago."""
    path = folder / name
    path.write_text(holder if isinstance(holder, str) else json.dumps(asdict(holder)))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_claim_is_held_by_one_and_let_go_of(tmp_path):
    with claimed(tmp_path, "grid") as claim:
        assert holder_of(tmp_path, "grid") == claim.holder
        assert (claim.holder.pid, claim.number) == (os.getpid(), 1)
        with (
            pytest.raises(Busy, match=f"another process is working .*process {os.getpid()} on"),
            claimed(tmp_path, "grid"),
        ):
            pass
        with claimed(tmp_path, "other"):
            pass
        claim.check()
    assert holder_of(tmp_path, "grid") is None
    with claimed(tmp_path, "grid") as claim:
        assert claim.number == 2
    assert names(tmp_path) == [".grid.2", ".other.1"]
    assert [(tmp_path / name).read_bytes() for name in names(tmp_path)] == [b"", b""]


def test_the_claim_of_a_process_that_was_killed_is_taken_over_at_once(tmp_path):
    def hold() -> None:
        with claimed(tmp_path, "grid"):
            os.kill(os.getpid(), signal.SIGKILL)

    process = CONTEXT.Process(target=hold)
    process.start()
    until = time.monotonic() + 60
    # In this order: a claim that is there, and then nobody who holds it (the dead process is not buried yet).
    while not (list(tmp_path.glob(".grid.1")) and holder_of(tmp_path, "grid") is None):
        assert time.monotonic() < until
    with claimed(tmp_path, "grid") as claim:
        assert claim.number == 2
    process.join()


def test_a_number_that_another_process_has_now_is_not_the_one_that_was(tmp_path):
    write(tmp_path, ".grid.1", replace(Holder.here(), began="1"))
    with claimed(tmp_path, "grid") as claim:
        assert claim.number == 2


@pytest.mark.parametrize(
    "holder", [ELSEWHERE, "no claim at all", '{"pid": 3}', json.dumps({**asdict(ELSEWHERE), "pid": "x"})]
)
def test_another_machine_is_dead_after_its_silence_and_not_before(holder, tmp_path):
    path = write(tmp_path, ".grid.3", holder, SILENCE - 30)
    with pytest.raises(Busy), claimed(tmp_path, "grid"):
        pass
    assert names(tmp_path) == [".grid.3"]
    os.utime(path, (time.time() - SILENCE - 1,) * 2)
    with claimed(tmp_path, "grid") as claim:
        assert (claim.number, names(tmp_path)) == (4, [".grid.4"])


def test_whoever_looked_too_long_ago_does_not_get_a_number_that_was_tidied_up(tmp_path, monkeypatch):
    look, stale = os.listdir, [[".grid.1"]]
    for _ in range(2):
        with claimed(tmp_path, "grid"):
            pass
    with claimed(tmp_path, "grid") as third:
        monkeypatch.setattr(os, "listdir", lambda where: stale.pop() if stale else look(where))
        (tmp_path / ".grid.1").touch()  # as it was when the late one looked: free
        with pytest.raises(Busy), claimed(tmp_path, "grid"):
            pass
        third.check()
    assert names(tmp_path) == [".grid.3"]


def test_whoever_slept_too_long_finds_its_work_taken_over(tmp_path):
    run = Store(tmp_path).run("abc")
    with run.locked():
        write(run.path, ".training.2", ELSEWHERE)
        with pytest.raises(Busy, match="taken its work over"):
            run.finish("finished")
    assert not (run.path / "end.json").exists()
    assert holder_of(run.path, "training") == ELSEWHERE  # letting go of the first left the second alone


def test_signs_of_life_are_given_while_a_claim_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT", 0.01)
    with claimed(tmp_path, "grid") as claim:
        os.utime(claim.path, (1.0, 1.0))
        until = time.monotonic() + 60
        while claim.path.stat().st_mtime == 1.0:
            assert time.monotonic() < until
            time.sleep(0.01)


def contest(folder: Path, times: int, seed: int) -> None:
    """Enter so often; nobody else may be there. The mark is made and removed by two calls, so two inside are seen."""
    rng = random.Random(seed)
    for _ in range(times):
        with claimed(folder, "grid", wait=True):
            (folder / "inside").mkdir()
            time.sleep(rng.uniform(0, 0.002))
            (folder / "inside").rmdir()
            with open(folder / "entered", "a") as file:
                file.write(f"{seed}\n")
    os._exit(0)


def test_of_many_that_ask_at_once_one_is_inside(tmp_path):
    processes = [CONTEXT.Process(target=contest, args=(tmp_path, 15, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len((tmp_path / "entered").read_text().splitlines()) == 60
    assert len(list(tmp_path.glob(".grid.*"))) == 1


@pytest.mark.slow
def test_one_is_inside_however_many_are_killed(tmp_path):
    def enter(seed: int) -> None:
        rng = random.Random(seed)
        while True:
            with claimed(tmp_path, "grid", wait=True) as claim:
                handle = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(handle, f"in {os.getpid()} {claim.number}\n".encode())
                time.sleep(rng.uniform(0, 0.003))
                os.write(handle, f"out {os.getpid()} {claim.number}\n".encode())
                os.close(handle)

    rng = random.Random(0)
    processes = [CONTEXT.Process(target=enter, args=(seed,)) for seed in range(4)]
    for process in processes:
        process.start()
    for seed in range(4, 204):
        time.sleep(rng.uniform(0, 0.05))
        victim = rng.randrange(4)
        processes[victim].kill()
        processes[victim].join()
        processes[victim] = CONTEXT.Process(target=enter, args=(seed,))
        processes[victim].start()
    for process in processes:
        process.kill()
        process.join()
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    numbers = [int(number) for _, _, number in lines]
    assert numbers == sorted(numbers)  # nobody wrote once a later one was inside
    entered = [number for what, _, number in lines if what == "in"]
    assert len(set(entered)) == len(entered) > 200


def test_who_is_present_is_seen_and_who_is_dead_is_not(tmp_path):
    write(tmp_path, ".working.a", ELSEWHERE)
    write(tmp_path, ".working.b", ELSEWHERE, SILENCE + 1)
    write(tmp_path, ".working.c", replace(Holder.here(), began="1"))
    with present(tmp_path) as here:
        assert {holder.token for holder in others(tmp_path)} == {"token", here.token}
    assert names(tmp_path) == [".working.a"]


def test_two_versions_do_not_work_in_one_directory_at_once(tmp_path):
    asked, store = Study("tiny", grid(tiny.federation(), seed=[0])), Store(tmp_path)
    path = write(tmp_path, ".working.a", ELSEWHERE)
    with (
        pytest.raises(StoreError, match=r"leakline 0\.0\.1 is at work .*process 4711 on node7") as error,
        at_work(store, asked),
    ):
        pass
    assert "\n" not in error.value.what
    path.unlink()
    with at_work(store, asked):
        pass


def no_links(*_, **__):
    raise OSError(errno.EPERM, "Operation not permitted")


def copies(source, target, **_):
    Path(target).write_bytes(Path(source).read_bytes())


@pytest.mark.parametrize("link", [no_links, copies])
def test_a_disk_on_which_no_claim_can_be_made_is_one_line(link, tmp_path, monkeypatch):
    check_disk(tmp_path)
    assert names(tmp_path) == []
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(StoreError, match="hard links") as error, at_work(Store(tmp_path), Study("tiny", ())):
        pass
    assert "\n" not in error.value.what
    assert not (tmp_path / "study.json").exists()


def test_a_claim_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "victim").write_text("mine")
    store, fed = Store(tmp_path / "store"), tiny.federation()
    run = train_run(store, fed, workers=1)
    (run.path / "end.json").unlink()
    (run.path / ".training.7").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="link"):
        train_run(store, fed, workers=1)
    assert (tmp_path / "victim").read_text() == "mine"
