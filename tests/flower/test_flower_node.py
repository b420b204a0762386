"""A hospital's own node: its file, its policy, its time limit, what its engineer is told, and what the server hears."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from leakline.bench.training import Plan
from leakline.data import Client, Data
from leakline.defences import DistributedDp, DpSgd, GlobalDP, Intermediaries, PinnedModel
from leakline.defences.pinned_model import architecture_of, weights_of
from leakline.errors import ClientLost, StudyError
from leakline.federation import initial_weights
from leakline.flower.node.limit import limited
from leakline.flower.node.policy import Policy
from leakline.flower.node.settings import policy_of, read_node
from leakline.flower.node.start import command, write_new
from leakline.flower.transport.serving import serve
from leakline.flower.transport.submit import Asked
from leakline.flower.transport.turns import _seconds
from leakline.flower.transport.versions import versions
from leakline.flower.transport.wire import head_of
from leakline.flower.transport.wire import record as wired
from leakline.flower.trial.certificates import make_node_key
from leakline.privacy import account, group, replace_one
from leakline.strategies import fedavg
from leakline.study.store import Store
from nodes_here import Context, NodesHere, RecordDict, config, own_nodes, serving
from superlink_here import superlink
from three_clients import STUDY
from tiny import federation, task

SECRET = STUDY.replace('noise = "seeded"\n', "")


def node_file(folder: Path, client: str, asks: str = "", **more: object) -> Path:
    settings = {"client": client, "superlink": "localhost:1", "data": "data.npz", "insecure": True, **more}
    lines = [f"{k} = {str(v).lower() if isinstance(v, bool | int | float) else repr(v)}" for k, v in settings.items()]
    file = folder / f"{client}.toml"
    file.write_text("\n".join([*lines, "[asks]", asks]))
    return file


def with_policy(nodes: list, position: int, folder: Path, asks: str) -> None:
    name = nodes[position].context.node_config["client"]
    nodes[position].context.node_config["policy"] = str(node_file(folder, name, asks))


# its file


def test_the_file_that_new_writes_is_one_that_is_read(tmp_path):
    file, public = write_new(tmp_path / "north.toml", "north")
    settings = read_node(file)
    assert settings.client == "north"
    assert settings.asks == Policy(8.0)
    assert policy_of({"policy": str(file)}) == settings.asks
    assert policy_of({}) == Policy()
    assert public.name == "north.key.pub"
    assert (tmp_path / "north.key").stat().st_mode & 0o777 == 0o600
    words = command(settings)
    told = dict(part.split("=", 1) for part in words[words.index("--node-config") + 1].split(" "))
    assert told["client"] == '"north"'
    assert told["data"] == f'"{tmp_path / "data.npz"}"'
    assert words[words.index("--auth-supernode-private-key") + 1] == str(tmp_path / "north.key")
    with pytest.raises(StudyError, match="there is such a file already"):
        write_new(file, "north")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("client", "cleint"), 'did you mean "client"'),
        (("unit ", "unti "), 'did you mean "unit"'),
        (('"patient"', '"person"'), "north.toml:14 asks.unit"),
        (("server.example:443", "https://server.example/x"), "superlink is host:port"),
        (("limit             = 3600", "limit = -1"), "limit is 0 or more"),
        (("epsilon  = 8.0", "epsilon = -8.0"), "epsilon is 0 or more"),
        (("defences = []", 'defences = ["dp-sdg"]'), "there is no defence 'dp-sdg'"),
        (
            ("own      = []", 'own = [{ use = "global-dp", noise_multiplier = 1.0, clip = 1.0 }]'),
            "look at what arrives",
        ),
        (("own      = []", 'own = [{ use = "pinned" }]'), 'there is no "pinned"'),
        (('root_certificates = "ca.crt"', ""), "give root_certificates"),
        (("client ", "= "), "this is not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(change, said, tmp_path):
    file, _ = write_new(tmp_path / "north.toml", "north")
    file.write_text(file.read_text().replace(*change, 1))
    with pytest.raises(StudyError) as error:
        read_node(file)
    assert said in str(error.value)


# its policy


def stack(*defences, **more):
    """A federation with noise of the operating system's, in which clients count the same."""
    settings = {"noise": "secret", "strategy": fedavg("even"), "rounds": 3, **more}
    return federation(task=task((40, 30, 50)), defences=defences, **settings)


def test_a_promise_is_read_as_one_of_its_units_may():
    """Against the accountant: the same unit as it is, a larger one exchanged and not removed, a smaller one k-fold."""
    fed = stack(DpSgd(2.0, 1.0))
    (record,) = fed.claims().values()
    assert Policy(1.0, unit="record").promised(fed) == account(record, 1e-5).epsilon
    assert Policy(1.0, unit="patient").promised(fed) == math.inf  # nobody says whose a record is
    assert Policy(1.0, unit="client").promised(fed) == math.inf
    clients = stack(GlobalDP(4.0, 0.5))
    (claim,) = clients.claims().values()
    assert Policy(1.0, unit="client", against="client").promised(clients) == account(claim, 1e-5).epsilon
    assert Policy(1.0, unit="patient", against="public").promised(clients) == account(replace_one(claim), 1e-5).epsilon
    assert Policy(1.0, unit="client", against="server").promised(clients) == math.inf  # the server adds that noise
    parts = stack(Intermediaries(4.0, 0.5, parts=2))
    whole = next(claim for claim in parts.claims().values() if claim.unit == "client")
    assert Policy(1.0, unit="client", against="client").promised(parts) == account(whole, 1e-5).epsilon


def test_a_patient_with_many_records_is_promised_less():
    fed = stack(DpSgd(8.0, 1.0))
    owned = [torch.arange(len(c.train)) // 4 for c in fed.task.clients]
    members = tuple(Client(c.name, Data(c.train.x, c.train.y, g)) for c, g in zip(fed.task.clients, owned, strict=True))
    fed = replace(fed, task=replace(fed.task, clients=members))
    (claim,) = fed.claims().values()
    assert Policy(1.0).promised(fed) == account(group(claim, 4), 1e-5).epsilon


@pytest.mark.parametrize(
    ("policy", "defences", "said"),
    [
        (Policy(), (), ""),
        (Policy(8.0, unit="record"), (), "the study promises none: no defence"),
        (Policy(8.0, unit="record"), (DpSgd(2.0, 1.0),), ""),
        (
            Policy(0.1, unit="record"),
            (DpSgd(2.0, 1.0),),
            "at most epsilon 0.1 (delta 1e-05) for a record against the server",
        ),
        (Policy(8.0, unit="client"), (GlobalDP(9.0, 0.5),), "none for a client against the server"),
        (
            Policy(defences=("dp-sgd",)),
            (GlobalDP(9.0, 0.5),),
            "asks for the defence dp-sgd, and the study is without it",
        ),
        (Policy(defences=("global-dp",)), (GlobalDP(9.0, 0.5),), ""),
        (Policy(own=(PinnedModel("0" * 16),)), (), "0000000000000000 was agreed on"),
    ],
)
def test_a_policy_objects_in_one_line(policy, defences, said):
    reason = policy.objection(stack(*defences))
    assert said in reason
    assert bool(reason) == bool(said)
    assert "\n" not in reason


def test_noise_that_can_be_drawn_again_and_sums_that_nobody_hides_promise_nothing():
    policy = Policy(100.0, unit="record")
    assert "its noise is seeded" in policy.objection(stack(DpSgd(2.0, 1.0), noise="seeded"))
    shared = DistributedDp(4.0, 1.0, rate=1.0, planned=40, clients=3)
    one_step = Plan(epochs=1, batch=0, learning_rate=0.1, max_steps=1)
    sums = stack(shared, plan=one_step, secure_aggregation="assumed")
    (of_sums,), (alone,) = sums.claims().values(), sums.but(secure_aggregation="none", min_clients=3).claims().values()
    assert of_sums.observer == "client"
    assert policy.promised(sums) == account(alone, 1e-5).epsilon > account(of_sums, 1e-5).epsilon


def test_a_node_pins_the_architecture_and_the_first_weights():
    fed = stack()
    agreed = PinnedModel(architecture_of(fed.wire), weights_of(initial_weights(fed)))
    policy = Policy(own=(agreed,))
    assert policy.objection(fed) == ""
    assert policy.watching(fed).defences == (agreed,)
    assert Policy().watching(fed) is fed


DP = (
    SECRET
    + """[defences]
none = []
dp-sgd = [{ use = "dp-sgd", noise_multiplier = 4.0, clip = 0.5 }]
"""
)


def test_a_node_that_declines_is_named_at_the_node_and_at_the_server_and_the_others_train(tmp_path, caplog):
    nodes = own_nodes(DP, tmp_path / "n")
    with_policy(nodes, 1, tmp_path, 'epsilon = 8.0\nunit = "record"')
    with caplog.at_level(logging.WARNING, logger="leakline"):
        record, grid = serving(DP, nodes, tmp_path / "out")
    reason = (
        "its policy asks for at most epsilon 8 (delta 1e-05) for a record against the server, and the study promises"
    )
    none, private = record["cells"]
    assert none["error"] == private["error"] == ""
    assert private["away"] == []
    (line,) = none["away"]
    assert line.startswith(f"client-2: {reason} none: no defence")
    assert f"this node declines cell 0: {reason}" in caplog.text
    assert f"begins without client-2: {reason}" in caplog.text
    assert caplog.text.count("this node declines") == 1
    assert grid.nodes[101].heads == ["query", "train", "train", "train"]  # it trained the second cell alone
    undefended = Store(tmp_path / "out").run(none["run"]).rounds()
    assert all(
        r["cohort"] == ["client-1", "client-3"] and r["dropped"] == [["client-2", line[10:]]] for r in undefended
    )
    assert all(len(r["cohort"]) == 3 for r in Store(tmp_path / "out").run(private["run"]).rounds())


def test_too_few_that_take_part_are_an_error_before_training(tmp_path):
    nodes = own_nodes(SECRET, tmp_path / "n")
    for position in (0, 2):
        with_policy(nodes, position, tmp_path, 'defences = ["dp-sgd"]')
    record, grid = serving(SECRET, nodes, tmp_path / "out")
    error = record["cells"][0]["error"]
    assert "1 of 3 clients take part, 2 are needed; client-1: its policy asks for the defence dp-sgd" in error
    assert all(node.heads == ["query"] for node in grid.nodes.values())


def test_an_order_of_a_server_that_did_not_ask_is_refused_too(tmp_path, monkeypatch):
    """The policy is the node's: a server that passes over the introduction gains nothing."""
    nodes = own_nodes(SECRET, tmp_path / "n")
    with_policy(nodes, 1, tmp_path, 'defences = ["dp-sgd"]')
    monkeypatch.setattr("leakline.flower.transport.serving.Gathering.declined", lambda self: {})
    record, grid = serving(SECRET, nodes, tmp_path / "out")
    run = Store(tmp_path / "out").run(record["cells"][0]["run"])
    assert all("its policy asks for the defence dp-sgd" in r["dropped"][0][1] for r in run.rounds())
    assert grid.nodes[101].heads == ["query", "train", "train", "train"]


def test_a_node_whose_policy_cannot_be_read_trains_nothing(tmp_path):
    nodes = own_nodes(SECRET, tmp_path / "n")
    nodes[1].context.node_config["policy"] = str(tmp_path / "gone.toml")
    record, grid = serving(SECRET, nodes, tmp_path / "out")
    assert "client-2: there is no node's file gone.toml" in record["cells"][0]["error"]
    assert str(tmp_path) not in record["cells"][0]["error"]
    assert grid.nodes[101].heads == ["query"]


@pytest.mark.parametrize("what", ["architecture", "weights"])
def test_a_model_that_nobody_agreed_on_is_not_trained(what, tmp_path):
    nodes = own_nodes(SECRET, tmp_path / "n")
    agreed = architecture_of(Asked(SECRET).study().cells[0].federation().wire)
    pin = f'architecture = "{"1" * 16 if what == "architecture" else agreed}", weights = "{"2" * 16}"'
    with_policy(nodes, 0, tmp_path, f'own = [{{ use = "pinned-model", {pin} }}]')
    record, _ = serving(SECRET, nodes, tmp_path / "out")
    run = Store(tmp_path / "out").run(record["cells"][0]["run"])
    reason = run.rounds()[0]["dropped"][0][1]
    assert ("1111111111111111 was agreed on" if what == "architecture" else "2222222222222222 were agreed on") in reason
    assert len(run.rounds()[1]["dropped"]) == (what == "architecture")  # the first weights are those of round 0


def test_a_node_that_comes_later_is_looked_at_as_those_that_began(tmp_path):
    """One of another version is not believed because it was away at the start; mended and back, it takes part."""
    nodes = own_nodes(SECRET, tmp_path / "n")
    late = nodes.pop()
    app, said = late.app, ["0.0.1"]

    def other(message, context):
        reply = app(message, context)
        if message.metadata.message_type == "query":
            told = head_of(reply.content)
            reply.content = wired({**told, "versions": {**told["versions"], "leakline": said[0]}})
        return reply

    late.app = other
    grid = NodesHere(nodes)

    def comes(message, reply):
        """With the first round's answers the late one connects; with the second's it is gone, mended, and back."""
        index = head_of(message.content)["round"]
        if index == 0:
            grid.nodes[102] = late
        elif index == 1:
            grid.nodes.pop(102, None)
            said[0] = versions()["leakline"]
        return reply

    nodes[0].fault = comes
    gone = grid.get_node_ids

    def online():
        there = gone()
        if 102 not in grid.nodes and said[0] != "0.0.1":
            grid.nodes[102] = late  # seen to be away once, and back the next time that somebody looks
        return there

    grid.get_node_ids = online
    text = SECRET.replace("rounds        = 3", "rounds = 4")
    for node in (*nodes, late):
        node.context.run_config["study"] = text
    serve(grid, Context(7, 1, {}, RecordDict(), config(text, tmp_path / "out")))
    (cell,) = json.loads((tmp_path / "out" / "flower.json").read_text())["cells"]
    rounds = Store(tmp_path / "out").run(cell["run"]).rounds()
    reasons = [dict(r["dropped"]).get("client-3") for r in rounds]
    assert reasons[0] == "no node of that name is connected"
    assert reasons[1] == f"its leakline is 0.0.1, the server's {versions()['leakline']}"
    assert reasons[3] is None


# its time


def test_a_turn_that_takes_too_long_ends_in_words_and_leaves_no_alarm():
    with pytest.raises(ClientLost, match=r"longer than 0\.05 s"), limited(0.05):
        time.sleep(60)
    with limited(0.05):
        pass
    time.sleep(0.1)
    with limited(0.0):
        pass


STUBBORN = """
import time
import leakline.flower.node.limit as limit
limit.GRACE = 0.2
with limit.limited(0.1):
    while True:
        try:
            time.sleep(60)
        except Exception:
            print("swallowed", flush=True)
"""


def test_code_that_does_not_let_go_ends_with_its_process():
    done = subprocess.run([sys.executable, "-c", STUBBORN], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == "swallowed\n"
    assert "Timeout" in done.stderr
    assert "most recent call first" in done.stderr


def test_a_node_works_for_as_long_as_it_allows_and_no_longer_than_anybody_waits():
    def real(**config: object) -> Context:
        return Context(7, 1, {"client": "a", **config}, RecordDict(), {})

    assert _seconds(real(), 0.0) == 0.0
    assert _seconds(real(), 90.0) == 90.0
    assert _seconds(real(limit=60), 90.0) == 60.0
    assert _seconds(real(limit=600), 90.0) == 90.0
    assert _seconds(Context(7, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), {}), 90.0) == 0.0


SLOW = """
import time
from torch import nn

class Net(nn.Sequential):
    def forward(self, x):
        if self.training:
            time.sleep(60)
        return super().forward(x)

def build(shape, classes):
    return Net(nn.Flatten(), nn.Linear(64, classes))
"""


def test_a_client_that_hangs_is_dropped_with_its_nodes_own_words(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "hanging_net.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    text = SECRET.replace('[model]\nuse    = "mlp"\nhidden = [8]', "").replace("rounds        = 3", "rounds = 1")
    text = text.replace("clients = 3", "clients = 1")
    text = f'model = "hanging_net:build"\nmin_clients = 1\n{text}'
    nodes = own_nodes(text, tmp_path / "n")
    nodes[0].context.node_config["limit"] = 3
    record, _ = serving(text, nodes, tmp_path / "out")
    assert "0 of 1 clients gave a usable answer" in record["cells"][0]["error"]
    assert "it took longer than 3 s, the most that its node allows" in record["cells"][0]["error"]


# what an engineer is told


def share(folder: Path, client: str = "client-1") -> Path:
    """A node's folder with its own data and keys in it."""
    data = own_nodes(SECRET, folder / "n")[0].context.node_config["data"]
    make_node_key(folder, "north.key")
    return node_file(folder, client, 'epsilon = 8.0\nunit = "record"', data=data, key="north.key", state="state")


def test_everything_is_looked_at_and_a_study_too(leakline, tmp_path, certificates):
    (tmp_path / "study.toml").write_text(DP)
    file = share(tmp_path)
    with superlink() as port:
        file.write_text(file.read_text().replace("localhost:1", f"localhost:{port}"))
        code, said, wrong = leakline("flower", "node", file, "--check", "--study", "study.toml")
    assert code == 0, wrong
    assert [line.split()[0] for line in said.splitlines()] == [
        "versions", "user", "key", "authority", "superlink", "data", "state", "asks", "study", "study",
    ]  # fmt: skip
    assert re.search(r"\d+ examples of 1x8x8, 10 classes", said)
    for part in (
        "GiB free",
        "at most epsilon 8",
        "answers",
        "north.key.pub must be",
    ):
        assert part in said
    none, private = said.splitlines()[-2:]
    assert "this node declines: its policy asks for at most epsilon 8" in none
    assert private.endswith("takes part")


def test_what_is_wrong_with_a_node_is_named_before_it_starts(leakline, tmp_path):
    (tmp_path / "study.toml").write_text(DP)
    file = share(tmp_path, "client-9")
    (tmp_path / "north.key").chmod(0o644)
    code, _, said = leakline("flower", "node", file, "--check", "--study", "study.toml")
    assert code == 2
    assert said.splitlines()[0] == "3 of these are wrong: key, superlink, study"
    data = tmp_path / "n" / "client-1" / "data.npz"
    held = dict(np.load(data, allow_pickle=False))
    np.savez(data, **(held | {"x_train": np.full(held["x_train"].shape, np.nan, np.float32)}))
    (tmp_path / "north.key").write_text("no key")
    code, _, said = leakline("flower", "node", file)
    assert code == 2
    assert said.splitlines()[0] == "2 of these are wrong: key, data"  # a SuperLink that is not there yet is waited for
