"""The clients of the app."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import Net, load_data
from digits_app.task import test as test_fn
from digits_app.task import train as train_fn

app = ClientApp()


def partition(context: Context):
    """This node's data."""
    node = context.node_config
    return load_data(int(node["partition-id"]), int(node["num-partitions"]), int(context.run_config["images"]))


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    torch.manual_seed(int(context.node_config["partition-id"]))
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data, _ = partition(context)
    config = context.run_config
    loss = train_fn(model, data, config["local-epochs"], config["learning-rate"], config["batch-size"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Evaluate the model on local data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, data = partition(context)
    loss, accuracy = test_fn(model, data)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
