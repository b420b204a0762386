"""A crew: jobs are done in processes that last, progress comes before answers, a dead process loses its job only."""

import multiprocessing
import os
import signal
import time

import pytest

from leakline.runtimes.crew import Crew, Here
from leakline.runtimes.forks import FORKABLE, side_by_side

pytestmark = pytest.mark.skipif(not FORKABLE, reason="processes are forked on Linux only")


def finished(crew, numbers):
    """All that is heard until every job has ended."""
    left, busy, heard = list(numbers), set(), []
    while left or busy:
        while left and crew.free:
            busy.add(left[0])
            crew.give(left.pop(0))
        for one in crew.hear(5.0):
            heard.append(one)
            busy -= {one.number} if one.ended else set()
    return heard


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_jobs_are_shared_by_processes_that_live_through_many():
    def work(number, tells):
        tells({"begun": number})
        time.sleep(0.02)
        return {"pid": os.getpid()}

    crew = Crew(work, 2)
    heard = finished(crew, range(6))
    crew.close()
    assert sorted(one.number for one in heard if one.ended == "done") == list(range(6))
    for number in range(6):
        assert [one.ended for one in heard if one.number == number] == ["", "done"]
    pids = {one.told["pid"] for one in heard if one.ended == "done"}
    assert len(pids) <= 2
    assert os.getpid() not in pids
    assert all(gone(pid) for pid in pids)


def test_a_process_that_dies_is_told_with_its_job_and_another_takes_the_next():
    def work(number, tells):
        if number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"is": number}

    crew = Crew(work, 1)
    heard = finished(crew, [0, 1, 2])
    crew.close()
    assert [(one.number, one.ended) for one in heard] == [(0, "done"), (1, "died"), (2, "done")]
    assert "exit code -9" in heard[1].told["died"]


def test_a_process_may_have_workers_of_its_own():
    def work(number, tells):
        said = []
        side_by_side([lambda tells, stop: tells({"pid": os.getpid()})] * 2, 2, lambda n, told: said.append(told["pid"]))
        return {"workers": len(set(said))}

    crew = Crew(work, 1)
    assert [one.told for one in finished(crew, [0])] == [{"workers": 2}]
    crew.close()


def test_none_outlives_whoever_began_it():
    def work(number, tells):
        tells({"pid": os.getpid()})
        time.sleep(600)

    def begins() -> None:
        crew, heard = Crew(work, 2), []
        crew.give(0)
        crew.give(1)
        while len(heard) < 2:
            heard += crew.hear(5.0)
        theirs.send([one.told["pid"] for one in heard])
        os.kill(os.getpid(), signal.SIGKILL)

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=begins)
    process.start()
    assert ours.poll(60)
    pids = ours.recv()
    process.join()
    until = time.monotonic() + 10
    while not all(gone(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(gone(pid) for pid in pids)


def test_here_a_job_is_done_when_it_is_asked_for():
    here = Here(lambda number, tells: {"is": number})
    assert here.free
    here.give(3)
    assert not here.free
    assert [(one.number, one.told, one.ended) for one in here.hear(0.0)] == [(3, {"is": 3}, "done")]
    assert here.free
    assert here.hear(0.0) == []
