"""The server of the app."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import leakline.flower  # the first of the two lines
from digits_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the model with FedAvg."""
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_evaluate=float(context.run_config["fraction-evaluate"]))
    strategy = leakline.flower.record(strategy, to=context.run_config["recording"])  # the second
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=int(context.run_config["num-server-rounds"]))
