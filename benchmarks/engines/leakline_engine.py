"""leakline itself, as a user would call it: ``leakline_engine.py FOLDER JOB OUT [workers]``."""

from __future__ import annotations

from jobs import BATCH, CLASSES, RATE, Record, arguments
from torch import Tensor

from leakline.bench.training import Plan
from leakline.data.base import Client, Data, Task
from leakline.federation import Federation, State, federate, keep_none
from leakline.models.papers import Paper000CNN, Paper002CNN
from leakline.runtimes.local import LocalTransport
from leakline.settings import Cohort


def federation(job: str, x: Tensor, y: Tensor) -> Federation:
    """The job as a federation; clients are named by their number."""
    clients = tuple(Client(str(i), Data(x[i], y[i])) for i in range(len(x)))
    task = Task(clients, None, None, tuple(str(c) for c in range(CLASSES[job])))
    if job == "A":
        plan = Plan(epochs=1, batch=BATCH[job], learning_rate=RATE[job], optimiser="adam")
        return Federation(task, Paper000CNN(), plan, rounds=3)
    plan = Plan(epochs=1, batch=BATCH[job], learning_rate=RATE[job], optimiser="sgd")
    return Federation(task, Paper002CNN(), plan, rounds=20, cohort=Cohort("fixed", 0.1))


def main() -> None:
    """Run the job and leave its record."""
    shared, out, options = arguments()
    made = federation(shared.job, shared.x, shared.y)
    record = Record()
    with LocalTransport(made, workers=int(options[0]) if options else 0) as transport:
        state = State()
        for _ in federate(made, transport, keep=keep_none, state=state):
            record.lap()
        assert state.weights is not None
        record.write(out, state.weights.vector)


if __name__ == "__main__":
    main()
