"""The Flower client of both jobs. A module of its own, so that Ray's actors import it once and keep its caches."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch
from bare import turn
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from jobs import Shared
from torch import nn

app = ClientApp()


@lru_cache(maxsize=1)
def held() -> tuple[Shared, nn.Module]:
    """The data and a model, loaded once in each actor."""
    torch.set_num_threads(1)
    shared = Shared(Path(os.environ["BENCH_FOLDER"]), os.environ["BENCH_JOB"])
    return shared, shared.model().train()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the client that the message names, so that cohorts are the same in every engine."""
    shared, net = held()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = message.content["config"]
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    turn(shared, net, start, int(config["server-round"]) - 1, int(config["client"]), best=False)
    metrics = MetricRecord({"num-examples": len(shared.y[0])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
