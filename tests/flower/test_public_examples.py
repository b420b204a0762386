"""Apps in the shapes of three of Flower's public examples, written anew on other data, with two lines of leakline's.

quickstart-pytorch   the tutorials' network with `view` behind its convolutions, normalised photographs, FedAvg
advanced-pytorch     a strategy of one's own: a learning rate that falls, a model judged at the server
quickstart-sklearn   no torch at all: coefficients of a logistic regression as plain arrays
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

import leakline.flower as flower
from flowerlike import ArrayRecord, ClientApp, Context, Here, Message, MetricRecord, RecordDict
from leakline.data import Digits
from leakline.recordings.recording import Recording

pytestmark = pytest.mark.slow

TUTORIAL = '''"""The network of the tutorials, for photographs of 32 x 32."""

from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.pool = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5), nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x)))))
'''
REGRESSION = '''"""What a logistic regression's coefficients are to torch."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_parameter("0", nn.Parameter(torch.zeros(10, 64)))
        self.register_parameter("1", nn.Parameter(torch.zeros(10)))

    def forward(self, x):
        weight, bias = self.parameters()
        return x.flatten(1) @ weight.T + bias
'''


def photographs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth pictures in [0, 1], in place of a download, and their labels."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=rng)
    x = functional.interpolate(coarse, size=(32, 32), mode="bilinear", align_corners=True)
    return x, torch.randint(10, (count,), generator=rng)


def network(path, text: str, monkeypatch: pytest.MonkeyPatch, name: str) -> type[nn.Module]:
    (path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(path)
    return __import__(name).Net


def torch_app(net: type[nn.Module], images: int) -> ClientApp:
    """A client as the PyTorch examples have it: normalised images, SGD with the rate that the server sends."""
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = photographs(images, ord(str(context.node_config["name"])))
        optimiser = torch.optim.SGD(model.parameters(), lr=float(message.content["config"]["lr"]))
        optimiser.zero_grad()
        loss = functional.cross_entropy(model((x - 0.5) / 0.5), y)
        loss.backward()
        optimiser.step()
        metrics = MetricRecord({"train_loss": float(loss), "num-examples": images})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"eval_loss": 1.0, "num-examples": 4})}), reply_to=message)

    return app


def attacked(leakline, tmp_path, model: str, shape: str, *words: str) -> str:
    code, out, err = leakline("attack", "rec", "--model", model, "--shape", shape, *words)
    assert code == 0, err
    return out


def audited(leakline) -> str:
    code, out, err = leakline("audit", "rec")
    assert code == 0, err
    return re.sub(r"\s+", " ", out)


def reported(leakline, tmp_path, *parts: str) -> None:
    code, _, err = leakline("report", "rec")
    assert code == 0, err
    page = (tmp_path / "rec" / "report.html").read_text()
    assert all(part in page for part in parts)


PLAN = ("--learning-rate", "0.1", "--batch", "1", "--epochs", "1")


def test_quickstart_pytorch(leakline, tmp_path, monkeypatch):
    net = network(tmp_path, TUTORIAL, monkeypatch, "quickstart_net")
    torch.manual_seed(0)
    strategy = flower.record(FedAvg(fraction_evaluate=0.5, min_available_nodes=3), to=str(tmp_path / "rec"))
    strategy.start(
        grid=Here(torch_app(net, 1)), initial_arrays=ArrayRecord(net().state_dict()),
        train_config=ConfigRecord({"lr": 0.1}), num_rounds=2,
    )  # fmt: skip
    recording = Recording(tmp_path / "rec")
    assert recording.indices() == [1, 2]
    client = recording.clients(1)[0]
    np.savez(
        tmp_path / "truth.npz",
        **{client: photographs(1, ord("abc"[int(client.removeprefix("node-")) - 10]))[0].numpy()},
    )
    words = (*PLAN, "--round", "1", "--client", client, "--truth", "truth.npz", "-s", "iterations=300")
    told = attacked(
        leakline, tmp_path, "quickstart_net:Net", "3,32,32", *words, "--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5"
    )
    blind = attacked(leakline, tmp_path, "quickstart_net:Net", "3,32,32", *words)
    found, missed = (float(re.search(r"ssim ([0-9.]+)", said)[1]) for said in (told, blind))
    assert found > missed
    assert found > 0.5
    assert "no noise at the server" in audited(leakline)
    reported(leakline, tmp_path, "gradient-inversion", "data:image/png")


class Falling(FedAvg):
    """A strategy of one's own, as advanced-pytorch has it."""

    def configure_train(self, server_round, arrays, config, grid):
        if server_round > 1:
            config["lr"] = float(config["lr"]) * 0.5
        return super().configure_train(server_round, arrays, config, grid)


def test_advanced_pytorch(leakline, tmp_path, monkeypatch):
    net = network(tmp_path, TUTORIAL, monkeypatch, "advanced_net")
    torch.manual_seed(0)
    x, y = photographs(40, 7)
    judged: list[int] = []

    def judge(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = net()
        model.load_state_dict(arrays.to_torch_state_dict())
        judged.append(server_round)
        with torch.no_grad():
            return MetricRecord({"accuracy": float((model((x - 0.5) / 0.5).argmax(1) == y).float().mean())})

    strategy = flower.record(Falling(fraction_evaluate=0.0), to=str(tmp_path / "rec"))
    strategy.start(
        grid=Here(torch_app(net, 2)), initial_arrays=ArrayRecord(net().state_dict()),
        train_config=ConfigRecord({"lr": 0.1}), num_rounds=3, evaluate_fn=judge,
    )  # fmt: skip
    assert judged == [0, 1, 2, 3]
    recording = Recording(tmp_path / "rec")
    assert recording.indices() == [1, 2, 3]
    lengths = [recording.round(index).updates[0].delta.norm() for index in (1, 2, 3)]
    assert lengths[2] < lengths[0]  # the rate fell
    public = photographs(60, 9)
    np.savez(tmp_path / "public.npz", x=((public[0] - 0.5) / 0.5).numpy(), y=public[1].numpy())
    words = ("--learning-rate", "0.1", "--batch", "2", "--epochs", "1", "--round", "1", "--public", "public.npz")
    said = attacked(leakline, tmp_path, "advanced_net:Net", "3,32,32", "--use", "label-inference", *words)
    met = sorted(set(re.findall(r"node-\d+", said)))
    assert len(met) >= 2
    for client in met:  # what its two labels are, as shares of the classes
        told = {int(c): float(v) for c, v in re.findall(rf"{client}: share \((\d)\) ([0-9.e-]+)", said)}
        labels = photographs(2, ord("abc"[int(client.removeprefix("node-")) - 10]))[1].tolist()
        assert all(abs(told[c] - labels.count(c) / 2) < 0.05 for c in range(10)), client
    assert "no noise at the server" in audited(leakline)
    reported(leakline, tmp_path, "label-inference")


def test_quickstart_sklearn(leakline, tmp_path, monkeypatch):
    digits = Digits().load()
    x = digits.train.inputs(slice(None)).flatten(1).numpy()
    y = digits.train.y.numpy()
    shares = {name: slice(40 * i, 40 * (i + 1)) for i, name in enumerate("abc")}
    app = ClientApp()

    @app.train()
    def _(message: Message, context: Context) -> Message:
        model = LogisticRegression(max_iter=60, warm_start=True)
        model.classes_ = np.arange(10)
        model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
        own = shares[str(context.node_config["name"])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it stops before it has converged, as the example's does
            # One blank record of every class: a client that lacks one could not be averaged.
            model.fit(np.concatenate([x[own], np.zeros((10, 64))]), np.concatenate([y[own], np.arange(10)]))
        metrics = MetricRecord({"num-examples": 40, "train_loss": 0.0})
        arrays = ArrayRecord([model.coef_, model.intercept_])
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    strategy = flower.record(FedAvg(fraction_evaluate=0.0), to=str(tmp_path / "rec"))
    start = ArrayRecord([np.zeros((10, 64)), np.zeros(10)])
    strategy.start(grid=Here(app), initial_arrays=start, num_rounds=2)
    assert Recording(tmp_path / "rec").indices() == [1, 2]
    network(tmp_path, REGRESSION, monkeypatch, "regression_net")
    members, others = slice(0, 120), slice(400, 520)
    for name, rows in (("members", members), ("others", others)):
        np.savez(tmp_path / f"{name}.npz", x=x[rows].reshape(-1, 1, 8, 8), y=y[rows])
    words = (
        "--learning-rate",
        "0.1",
        "--batch",
        "40",
        "--epochs",
        "1",
        "--members",
        "members.npz",
        "--others",
        "others.npz",
    )
    said = attacked(leakline, tmp_path, "regression_net:Net", "1,8,8", "--use", "loss-threshold", *words)
    auc = re.search(r"auc ([0-9.]+)", said)
    assert auc is not None
    assert float(auc[1]) > 0.5  # 120 records, learnt nearly by heart
    assert "no noise at the server" in audited(leakline)
    reported(leakline, tmp_path, "loss-threshold")
