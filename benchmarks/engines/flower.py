"""Flower's simulation on Ray, two actors with one thread each: ``flower.py FOLDER JOB OUT``.

Evaluation is off, telemetry and update checks too (see `training.ENVIRONMENT`), and Ray stays on the loopback
device. Which client a message is for rides in its config, so that cohorts are those of the other engines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import torch
from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from jobs import Record, Shared, arguments


class Timed(FedAvg):
    """FedAvg with given cohorts, and a note of when each round ended."""

    def __init__(self, shared: Shared) -> None:
        """Train only."""
        super().__init__(fraction_evaluate=0.0)
        self.shared, self.record = shared, Record()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message for each client of the cohort."""
        while len(nodes := sorted(grid.get_node_ids())) < len(self.shared.y):
            time.sleep(0.05)  # nodes register one by one, and Flower's own sampling waits for them too
        for client in self.shared.cohorts[server_round - 1]:
            own = ConfigRecord({"server-round": server_round, "client": client})
            content = RecordDict({"arrays": arrays, "config": own})
            yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=nodes[client])

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """The mean, and the time."""
        held = list(replies)
        failed = [m.error.reason for m in held if m.has_error()]
        if failed or len(held) != len(self.shared.cohorts[server_round - 1]):
            raise RuntimeError(f"{len(held)} replies, {len(failed)} failures: {failed[:1]}")
        result = super().aggregate_train(server_round, held)
        self.record.lap()
        return result


def main() -> None:
    """Run the job and leave its record."""
    shared, out, _ = arguments()
    os.environ["BENCH_FOLDER"], os.environ["BENCH_JOB"] = str(shared.folder), shared.job
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = Timed(shared)
        result = strategy.start(grid, ArrayRecord(shared.model().state_dict()), num_rounds=shared.rounds)
        final = torch.cat([v.flatten() for v in result.arrays.to_torch_state_dict().values()])
        strategy.record.write(out, final)

    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=len(shared.y),
        backend_config={
            "init_args": {"num_cpus": 2, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
