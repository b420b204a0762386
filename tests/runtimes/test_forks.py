"""Forked jobs: all run, no more at once than asked, their ends are noticed, and they can be stopped."""

import os
import signal
import time

import pytest

from leakline.errors import StackError
from leakline.runtimes.forks import FORKABLE, side_by_side

pytestmark = pytest.mark.skipif(not FORKABLE, reason="processes are forked on Linux only")


def note(path, text):
    def job(tells, stop):
        begun = time.monotonic()
        tells({"at": text})
        time.sleep(0.05)
        path.write_text(f"{begun} {time.monotonic()} {os.getpid()}")

    return job


def test_all_jobs_run_in_processes_of_their_own_and_no_more_at_once_than_asked(tmp_path):
    heard = []
    side_by_side([note(tmp_path / str(i), i) for i in range(5)], 2, lambda n, told: heard.append((n, told["at"])))
    assert sorted(heard) == [(i, i) for i in range(5)]
    lines = [(tmp_path / str(i)).read_text().split() for i in range(5)]
    assert os.getpid() not in {int(pid) for _, _, pid in lines}
    moments = sorted([(float(begun), 1) for begun, _, _ in lines] + [(float(ended), -1) for _, ended, _ in lines])
    assert max(sum(step for _, step in moments[: i + 1]) for i in range(len(moments))) <= 2


def test_a_job_that_fails_says_why_and_ends_the_others(tmp_path):
    def waits(tells, stop):
        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(tmp_path / "pid")
        time.sleep(600)

    def fails(tells, stop):
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        raise ValueError("no such image")

    with pytest.raises(RuntimeError, match="no such image"):
        side_by_side([waits, fails], 2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_job_that_is_killed_is_an_error_with_a_way_out():
    def dies(tells, stop):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(StackError, match=r"died \(exit code -9(.|\n)*fewer --workers"):
        side_by_side([dies], 1)


def test_a_stop_reaches_the_running_and_keeps_the_waiting_from_beginning(tmp_path):
    def until_told(tells, stop):
        tells({"begun": True})
        while not stop():
            time.sleep(0.01)
        (tmp_path / "stopped").touch()

    heard = []
    jobs = [until_told, note(tmp_path / "never", "never")]
    side_by_side(jobs, 1, lambda n, told: heard.append(n), stop=lambda: bool(heard))
    assert (tmp_path / "stopped").exists()
    assert not (tmp_path / "never").exists()
