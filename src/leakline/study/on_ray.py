"""Cells as tasks of a Ray cluster (Ray Core alone): retried when a node dies, results through the store or the driver.

Ray pickles what it carries between its own processes: a cluster is as trustworthy as its nodes.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from leakline import __version__
from leakline.errors import LeaklineError, StackError
from leakline.runtimes.crew import Heard
from leakline.study.claims import Busy
from leakline.study.cluster import begin, line_of
from leakline.study.ear import Ear
from leakline.study.files import NEW, is_there
from leakline.study.one_cell import Work
from leakline.study.pace import Pace
from leakline.study.ray_task import Asked, Files, Order, do_cell, read_files, sees, write_files
from leakline.study.store import WORKS, Store
from leakline.study.timing import memory_of

RETRIES = 5
"""How often Ray begins a cell again whose node or process died."""
LOOK_SECONDS = 5.0
"""How often to look whether there is still a node that cells fit on."""


class OnRay:
    """The cells of a study as tasks on a Ray cluster: `leakline.runtimes.crew.Hands` with many of them.

    Where every node sees the run directory, tasks work in it like any other process. Where one does not, a task is
    given what there is of its run and hands all files back; meanwhile the run is claimed by this process. ``shared``
    says which; None: nodes are asked, when there is a directory. ``ours``: the cluster that there is ends with this.
    """

    def __init__(
        self,
        work: Work,
        pace: Pace | None,
        asked: Asked,
        address: str = "",
        shared: bool | None = None,
        ours: bool = False,
    ) -> None:
        import ray

        self.ray, self.work, self.pace, self.asked = ray, work, pace, asked
        self.workers = work.workers or 1
        federations = [cell.federation() for cell in work.study.cells]
        self.memory = int(max(memory_of(federation, self.workers) for federation in federations) * 2**20)
        self.gpus = int(any(federation.engine.device != "cpu" for federation in federations))
        self.running: dict[Any, int] = {}
        self.claimed: dict[int, contextlib.ExitStack] = {}
        self.refused: list[int] = []
        self._shared = shared
        self.ours = begin(address) or ours
        try:
            self._look()
            needs = {"num_cpus": self.workers, "memory": self.memory, "num_gpus": self.gpus}
            self.task = ray.remote(**needs, max_retries=RETRIES)(do_cell)
            self.ear = ray.remote(num_cpus=0, max_restarts=-1)(Ear).remote()
        except BaseException:
            self.close()
            raise

    @property
    def free(self) -> bool:
        """Whether the cluster has room for another cell, or one may queue, so that no core waits for its next."""
        return len(self.running) < 2 * self.size

    @property
    def shared(self) -> bool:
        """Whether every node sees the run directory."""
        if self._shared is None:
            self._shared = self._is_shared()
        return self._shared

    def give(self, number: int) -> None:
        """Hand a cell to the cluster."""
        work, key, files = self.work, self.work.keys[number], Files()
        if not self.shared:
            try:
                self.claimed[number] = _claim(work.store, key)
            except Busy:
                self.refused.append(number)
                return
            files = read_files(work.store.root, key)
            if (source := work.sources.get(number)) is not None:  # what it wrote down is told to this one
                theirs = read_files(work.store.root, work.keys[source])
                files |= {name: data for name, data in theirs.items() if name.endswith((".json", ".jsonl"))}
        name = work.study.cells[number].name
        order = Order(
            self.asked, number, tuple(work.keys), __version__, str(work.store.root.absolute()) if self.shared else "",
            self.workers, work.deadline, None if self.pace is None else self.pace.of_cell(name), files,
        )  # fmt: skip
        self.running[self.task.remote(order, self.ear)] = number

    def hear(self, seconds: float) -> Sequence[Heard]:
        """What cells tell on their way, and what became of those that ended."""
        heard = [Heard(number, {"how": "busy"}, "done") for number in self.refused]
        self.refused = []
        if not self.running:
            time.sleep(0.0 if heard else seconds)
            return heard
        ended, _ = self.ray.wait(list(self.running), timeout=seconds)
        with contextlib.suppress(self.ray.exceptions.RayError):  # whoever listens is being started on another node
            told = self.ray.get(self.ear.hear.remote(), timeout=LOOK_SECONDS)
            heard += [Heard(number, said) for number, said in told.items() if number in self.running.values()]
        heard += [self._ended(task) for task in ended]
        if time.monotonic() - self.looked > LOOK_SECONDS:
            self._look()
        return heard

    def close(self) -> None:
        """End all cells at once; leave the cluster, or end it if it was begun here."""
        for task in self.running:
            with contextlib.suppress(Exception):
                self.ray.cancel(task, force=True)
        for claims in self.claimed.values():
            claims.close()
        self.running, self.claimed = {}, {}
        if self.ours:
            self.ray.shutdown()

    def _ended(self, task: Any) -> Heard:
        number = self.running.pop(task)
        with self.claimed.pop(number, contextlib.ExitStack()):
            try:
                answer, files = self.ray.get(task)
                write_files(self.work.store.root, self._new(self.work.keys[number], files))
            except self.ray.exceptions.RayError as error:
                return Heard(number, {"died": line_of(error)}, "died")
            except LeaklineError as error:
                return Heard(number, {"how": "failed", "error": str(error)}, "done")
        return Heard(number, answer, "done")

    def _new(self, key: str, files: Files) -> Files:
        """Of what a node sent: the cell's own run, and worlds that are not here yet."""
        root = self.work.store.root
        there = {name.split("/")[1] for name in files if name.startswith("runs/")}
        there = {one for one in there if one == key or not is_there(root / "runs" / one / "run.json")}
        return {name: data for name, data in files.items() if name.split("/")[1:2] and name.split("/")[1] in there}

    def _look(self) -> None:
        """See how many cells the nodes that are alive can take at once; there must be room for one."""
        self.looked = time.monotonic()
        self.size = sum(self._room(node["Resources"]) for node in self.ray.nodes() if node["Alive"])
        if self.size < 1:
            raise StackError(
                f"no node of this Ray cluster has {self.workers} cores, {self.memory / 2**20:.0f} MB of memory"
                + " and a GPU" * self.gpus,
                "Ray",
                "give fewer --workers, or larger nodes; what was finished is kept",
            )

    def _room(self, has: Mapping[str, float]) -> int:
        needs = {"CPU": self.workers, "memory": self.memory, "GPU": self.gpus}
        return int(min(has.get(what, 0.0) // much for what, much in needs.items() if much))

    def _is_shared(self) -> bool:
        """Whether every node sees the run directory where it is here."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        look = self.ray.remote(num_cpus=0)(sees)
        handle, path = tempfile.mkstemp(prefix=f"{NEW}seen.", dir=self.work.store.root)
        os.close(handle)
        try:
            nodes = [node["NodeID"] for node in self.ray.nodes() if node["Alive"]]
            there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
            asked = [look.options(scheduling_strategy=one).remote(os.path.abspath(path)) for one in there]
            return all(self.ray.get(asked, timeout=60.0))
        except self.ray.exceptions.RayError:  # a node that cannot answer will not do cells either
            return False
        finally:
            os.unlink(path)


def _claim(store: Store, key: str) -> contextlib.ExitStack:
    """Claim all of a run, for as long as a node works on it that does not see it."""
    with contextlib.ExitStack() as claims:
        for work in WORKS:
            claims.enter_context(store.run(key).locked(work))
        return claims.pop_all()
