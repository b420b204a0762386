"""Rounds of leakline and of Flower's FedAvg in turn, on one grid: ``overhead.py OUT ROUNDS``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from overhead_client import CLIENTS, Net, app, federation

from leakline.federation import federate, keep_none
from leakline.flower import FlowerTransport


def main() -> None:
    """Measure, and leave the seconds of each round."""
    out, rounds = Path(sys.argv[1]), int(sys.argv[2])
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        fed = federation()
        transport = FlowerTransport(grid, names=[client.name for client in fed.task.clients])
        ours = federate(fed, transport, keep=keep_none)
        strategy, arrays = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS), ArrayRecord(Net().state_dict())
        times: dict[str, list[float]] = {"leakline": [], "Flower": []}
        for index in range(rounds + 2):
            start = time.perf_counter()
            assert len(next(ours).cohort) == CLIENTS
            middle = time.perf_counter()
            messages = strategy.configure_train(index + 1, arrays, ConfigRecord(), grid)
            replies = list(grid.send_and_receive(messages, timeout=600))
            assert len(replies) == CLIENTS
            combined, _ = strategy.aggregate_train(index + 1, replies)
            assert combined is not None
            arrays = combined
            end = time.perf_counter()
            if index >= 2:  # actors import and load in the first
                times["leakline"].append(middle - start)
                times["Flower"].append(end - middle)
        out.write_text(json.dumps(times))

    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=CLIENTS,
        backend_config={
            "init_args": {"num_cpus": 2, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
