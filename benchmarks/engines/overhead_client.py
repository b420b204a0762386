"""A ClientApp that answers both: leakline's orders, and messages of Flower's own FedAvg as its quickstart does."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from leakline.bench.training import Plan
from leakline.data import DATASETS, PARTITIONERS, partition
from leakline.federation import Federation
from leakline.flower.transport.turns import take_turn
from leakline.settings import Engine

CLIENTS, BATCH, RATE = 10, 32, 0.1


class Net(nn.Sequential):
    """The quickstart's network (LeNet's shape), for digits of 8 x 8 pixels."""

    def __init__(self) -> None:
        """About as many weights as the quickstart's."""
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(512, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip


@lru_cache(maxsize=1)
def federation() -> Federation:
    """Ten clients with an even share of the digits."""
    torch.set_num_threads(1)
    task = partition(DATASETS["digits"]().load(), PARTITIONERS["even"](), clients=CLIENTS, seed=0)
    plan = Plan(epochs=1, batch=BATCH, learning_rate=RATE)
    return Federation(task, Net, plan, rounds=10_000, engine=Engine(together="off"))


@lru_cache(maxsize=CLIENTS)
def loader(client: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """One client's batches, as the quickstart makes them."""
    data = federation().task.clients[client].train
    return DataLoader(TensorDataset(data.inputs(slice(None)), data.y), batch_size=BATCH, shuffle=True)


app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Who is this node?"""
    return Message(take_turn(message.content, context, lambda *_: federation()), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch, by whoever asks."""
    if "leakline" in message.content:
        return Message(take_turn(message.content, context, lambda *_: federation()), reply_to=message)
    torch.set_num_threads(1)
    net, batches = Net(), loader(int(context.node_config["partition-id"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    criterion, optimiser = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=RATE)
    net.train()
    running = 0.0
    for x, y in batches:
        optimiser.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimiser.step()
        running += loss.item()
    metrics = MetricRecord({"train_loss": running / len(batches), "num-examples": len(batches.dataset)})  # type: ignore[arg-type]
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
