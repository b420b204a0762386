"""Whole studies over nodes in this process: the ordinary store, nodes with their own data, errors, going on."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from leakline.errors import DataError, LeaklineError, StudyError
from leakline.federation import federate
from leakline.flower.transport.drive import _left, _named, _trained_elsewhere
from leakline.flower.transport.serving import RECORD, SENT, serve
from leakline.flower.transport.shares import write_shares
from leakline.flower.transport.submit import Asked, Link, Sent
from leakline.flower.transport.versions import versions
from leakline.flower.transport.wire import head_of, record
from leakline.study.carded import card_of
from leakline.study.run import run_study
from leakline.study.store import Store
from nodes_here import Context, Node, NodesHere, RecordDict, config, own_nodes, serving, simulated_nodes
from three_clients import SCENARIOS, STUDY

PERSONAL = STUDY + '[defences]\nfedper = [{ use = "fedper", last = 1 }]\n'


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


def here(text: str, out: Path) -> list:
    return [outcome.run for outcome in run_study(Asked(text).study(), out, workers=1)]


def files(run) -> dict[str, bytes]:
    """What a run holds, but for its times."""
    found = {name: (run.path / name).read_bytes() for name in ("run.json", "rounds.jsonl", "readings.jsonl")}
    return found | {"weights": run.final_weights().vector.numpy().tobytes()}


@pytest.mark.parametrize("kind", ["own", "simulated"])
def test_a_study_on_nodes_leaves_the_store_that_a_study_here_leaves(kind, tmp_path):
    text, out = STUDY + SCENARIOS, tmp_path / "out"
    nodes = own_nodes(text, tmp_path / "n") if kind == "own" else simulated_nodes(text, out)
    record, _ = serving(text, nodes, out)
    assert record["error"] == ""
    assert [cell["error"] for cell in record["cells"]] == ["", "", ""]
    expected = here(text, tmp_path / "here")
    for cell, run in zip(record["cells"], expected, strict=True):
        assert cell["run"] == run.key
        assert files(Store(out).run(cell["run"])) == files(run)
        assert card_of(Store(out).run(run.key)) == card_of(run)
    # A folder that only `flwr run` wrote can be reported on, too.
    labels = [(cell["labels"], cell["run"]) for cell in Store(tmp_path / "here").grid()["cells"]]
    assert [(cell["labels"], cell["run"]) for cell in Store(out).grid()["cells"]] == labels
    if kind == "simulated":  # an examiner may look into simulated clients, and only there
        personal = Store(out).run(expected[2].key).standing()[1], expected[2].standing()[1]
        assert all(torch.equal(personal[0][c]["private"], personal[1][c]["private"]) for c in personal[1])
    else:
        assert Store(out).run(expected[2].key).standing()[1] == {}


def test_judging_and_the_next_round_share_a_message(tmp_path):
    _, grid = serving(PERSONAL, own_nodes(PERSONAL, tmp_path / "n"), tmp_path / "out")
    for node in grid.nodes.values():
        assert node.heads == ["query", "train", "evaluate", "evaluate", "evaluate"]  # round 0; judge 0, round 1; ...


def test_where_the_next_order_is_not_certain_nobody_trains_ahead(tmp_path):
    text = PERSONAL.replace("rounds        = 3", "rounds        = 2\npatience = 1")
    _, grid = serving(text, own_nodes(text, tmp_path / "n"), tmp_path / "out")
    assert grid.nodes[100].heads == ["query", "train", "evaluate", "train", "evaluate"]


@pytest.mark.parametrize("after", range(4, 16, 2))
def test_a_server_that_is_killed_goes_on_to_the_same_model(after, tmp_path):
    whole = here(PERSONAL, tmp_path / "here")[0]
    out = tmp_path / "out"
    first, _ = serving(PERSONAL, own_nodes(PERSONAL, tmp_path / "n"), out, dies_after=after)
    assert re.search("the (server's app|transport) failed", first["error"] + first["cells"][0]["error"])
    # Another run of Flower: nodes have forgotten everything but what is in their own folders.
    again, _ = serving(PERSONAL, own_nodes(PERSONAL, tmp_path / "n"), out)
    assert again["error"] == again["cells"][0]["error"] == ""
    assert files(Store(out).run(whole.key)) == files(whole)


def test_nodes_that_forgot_their_layers_are_not_gone_on_with(tmp_path):
    out = tmp_path / "out"
    serving(PERSONAL, own_nodes(PERSONAL, tmp_path / "n", state=False), out, dies_after=10)
    assert Store(out).run(here(PERSONAL, tmp_path / "here")[0].key).standing() is not None
    again, _ = serving(PERSONAL, own_nodes(PERSONAL, tmp_path / "n", state=False), out)
    assert "no longer have the layers" in again["cells"][0]["error"]


def change(path: Path, **arrays) -> None:
    old = dict(np.load(path / "data.npz", allow_pickle=False))
    np.savez(path / "data.npz", **{k: v for k, v in (old | arrays).items() if v is not None})


MISFITS = {
    "shape": ({"x_train": np.zeros((4, 1, 9, 9), np.float32), "y_train": np.arange(4), "x_test": None, "y_test": None},
              "client-2: its examples have shape (1, 9, 9), the study's (1, 8, 8)"),
    "classes": ({"class_names": np.array([f"beast {i}" for i in range(10)])}, "client-2: it has the classes beast 0"),
    "masks": ({"y_train": np.zeros((4, 1, 8, 8), np.uint8), "x_train": np.zeros((4, 1, 8, 8), np.float32),
               "x_test": None, "y_test": None, "class_names": None}, "client-2: its data are for segmentation"),
    "not finite": ({"x_train": np.full((4, 1, 8, 8), np.nan, np.float32), "y_train": np.arange(4)},
                   "client-2: x has values that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_a_node_whose_data_do_not_fit_is_named_before_training(name, tmp_path):
    arrays, reason = MISFITS[name]
    nodes = own_nodes(STUDY, tmp_path / "n")
    change(tmp_path / "n" / "client-2", **arrays)
    record, grid = serving(STUDY, nodes, tmp_path / "out")
    assert reason in record["cells"][0]["error"]
    assert str(tmp_path) not in json.dumps(record)
    assert all(node.heads == ["query"] for node in grid.nodes.values())


def test_a_node_without_data_and_one_whose_file_is_gone_say_so(tmp_path):
    nodes = own_nodes(STUDY, tmp_path / "n")
    nodes[0] = Node({"client": "client-1"}, {"study": STUDY})
    nodes[1].context.node_config["data"] = str(tmp_path / "patients" / "nothing.npz")
    record, _ = serving(STUDY, nodes, tmp_path / "out")
    error = record["cells"][0]["error"]
    assert "client-1: this node has no data" in error
    assert "client-2: " in error
    assert "patients" not in error


def test_fewer_nodes_than_a_round_needs_are_an_error_before_training(tmp_path):
    text = f"min_clients = 3\n{STUDY}"
    record, grid = serving(text, own_nodes(text, tmp_path / "n")[:2], tmp_path / "out")
    assert "2 of 3 clients have a node; missing: client-3" in record["cells"][0]["error"]
    assert all(node.heads == ["query"] for node in grid.nodes.values())
    record, _ = serving(STUDY, own_nodes(STUDY, tmp_path / "n")[:1], tmp_path / "out")
    assert "1 of 3 clients have a node, 2 are needed; missing: client-2, client-3" in record["cells"][0]["error"]


def test_as_many_as_a_round_needs_begin_without_the_others(tmp_path):
    """And train the model of a federation of those who are there, in this process."""
    record, _ = serving(STUDY, own_nodes(STUDY, tmp_path / "n")[:2], tmp_path / "out")
    (cell,) = record["cells"]
    assert (cell["error"], cell["away"]) == ("", ["client-3: no node of that name is connected"])
    run = Store(tmp_path / "out").run(cell["run"])
    assert cell["run"] == here(STUDY, tmp_path / "here")[0].key
    assert all(r["dropped"] == [["client-3", "no node of that name is connected"]] for r in run.rounds())
    whole = Asked(STUDY).study().cells[0].federation()
    alone = replace(whole, task=replace(whole.task, clients=whole.task.clients[:2]))
    assert torch.equal(run.final_weights().vector, list(federate(alone))[-1].result.vector)


def test_a_study_from_another_machine_is_refused_before_anything_is_asked(tmp_path):
    """The command writes what it hands over into its run directory; here it wrote it elsewhere, or not last."""
    nodes, out = own_nodes(STUDY, tmp_path / "n"), tmp_path / "out"
    sent = Sent(Asked(STUDY), Link("127.0.0.1:1"), "mine", "17").keep(tmp_path / "elsewhere")
    assert Sent.kept(tmp_path / "elsewhere") == sent
    for _ in range(2):
        grid = NodesHere(nodes)
        with pytest.raises(StudyError, match="waits on another machine"):
            serve(grid, Context(7, 1, {}, RecordDict(), config(STUDY, out, submission="mine")))
        assert grid.sent == 0
        assert not (out / RECORD).exists()
        Sent(Asked(STUDY), Link("127.0.0.1:1"), "newer").keep(out)
    sent.keep(out)
    serve(NodesHere(nodes), Context(7, 1, {}, RecordDict(), config(STUDY, out, submission="mine")))
    assert json.loads((out / RECORD).read_text())["cells"][0]["error"] == ""
    (out / SENT).write_text("{}")
    with pytest.raises(LeaklineError):
        Sent.kept(out)
    with pytest.raises(StudyError, match="nothing was handed to a SuperLink from here"):
        Sent.kept(tmp_path)


def test_data_that_are_shared_out_anew_for_each_seed_cannot_be_at_nodes(tmp_path):
    nodes = own_nodes(STUDY, tmp_path / "n")
    record, _ = serving(STUDY.replace("limit   = 240", 'limit = 240\nseed = "each"'), nodes, tmp_path / "out")
    assert 'data.seed = "each"' in record["cells"][0]["error"]


AT_NODES = STUDY.replace(
    'use     = "digits"\nlimit   = 240\nclients = 3',
    'use = "at-nodes"\nsites = ["client-1", "client-2", "client-3"]\nshape = [1, 8, 8]\n'
    'classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]\ntest = "TEST"',
)


@pytest.mark.parametrize(
    "more",
    ["", '[defences]\ndp-sgd = [{ use = "dp-sgd", noise_multiplier = 1.0, clip = 1.0 }]\n', 'attacks = "strongest"\n'],
    ids=["plain", "dp-sgd", "strongest"],
)
def test_a_study_that_leaves_the_data_at_the_nodes_trains_the_same_model(more, tmp_path):
    plain = more if "defences" in more else ""
    cell = Asked(STUDY).study().cells[0].federation()
    np.savez(tmp_path / "server.npz", x=cell.task.test.x.numpy(), y=cell.task.test.y.numpy())
    text = AT_NODES.replace("TEST", str(tmp_path / "server.npz"))
    text = text + more if plain else more + text
    nodes = own_nodes(STUDY, tmp_path / "n")
    for node in nodes:
        node.context.run_config["study"] = text
    record, _ = serving(text, nodes, tmp_path / "out")
    assert record["cells"][0]["error"] == ""
    run, same = Store(tmp_path / "out").run(record["cells"][0]["run"]), here(STUDY + plain, tmp_path / "here")[0]
    assert torch.equal(run.final_weights().vector, same.final_weights().vector)
    assert run.readings() == same.readings()
    table = json.loads((run.path / "run.json").read_text())["partition"]
    assert [row["train"] for row in table[:3]] == [len(c.train) for c in cell.task.clients]
    assert all(sum(row["counts"]) == 0 for row in table[:3])  # the server does not learn its clients' labels

    left, _ = _left(Asked(text), _named(Asked(text)), record)  # what the command goes on with
    outcome = next(run_study(left, tmp_path / "out"))
    assert outcome.run.key == run.key
    assert not outcome.trained


@pytest.mark.parametrize("joins", [True, False])
def test_a_run_is_the_same_one_whoever_is_there_when_it_goes_on(joins, tmp_path):
    """A client that was away joins in, or one that was there is away; data that stay at the nodes, known by hashes."""
    text = AT_NODES.replace('test = "TEST"', "").replace("rounds        = 3", 'rounds = 3\nevaluate = "clients"')
    nodes, out = own_nodes(STUDY, tmp_path / "n"), tmp_path / "out"
    for node in nodes:
        node.context.run_config["study"] = text
    few, everybody = nodes[:2], nodes
    first, _ = serving(text, few if joins else everybody, out, dies_after=7 if joins else 10)
    started = first["cells"][0]["run"]
    done = len(Store(out).run(started).rounds())
    assert 0 < done < 3
    again, _ = serving(text, everybody if joins else few, out)
    assert again["cells"][0]["error"] == ""
    assert again["cells"][0]["run"] == started
    sizes = [len(r["cohort"]) for r in Store(out).run(started).rounds()]
    assert sizes == ([2] * done + [3] * (3 - done) if joins else [3] * done + [2] * (3 - done))
    if joins:  # with another setting it is another study, which knows who is there
        other, _ = serving(text.replace("0.3", "0.2"), everybody, out)
        assert set(other["cells"][0]["facts"]) == {"client-1", "client-2", "client-3"}


def test_such_a_study_is_refused_here_and_in_a_simulation(tmp_path):
    text = AT_NODES.replace('test = "TEST"', "")
    with pytest.raises(DataError, match="at the nodes of a Flower federation"):
        Asked(text).study().cells[0].federation()
    record, _ = serving(text, simulated_nodes(text, tmp_path / "out"), tmp_path / "out")
    assert "simulated nodes have none" in record["cells"][0]["error"]


def test_sites_may_lack_classes_or_order_them_otherwise(tmp_path):
    nodes = own_nodes(STUDY, tmp_path / "n")
    old = dict(np.load(tmp_path / "n" / "client-1" / "data.npz", allow_pickle=False))
    names = np.array([f"{i}" for i in reversed(range(10))])
    change(tmp_path / "n" / "client-1", class_names=names, y_train=9 - old["y_train"], y_test=9 - old["y_test"])
    record, _ = serving(STUDY, nodes, tmp_path / "out")
    assert Store(tmp_path / "out").run(record["cells"][0]["run"]).end["status"] == "finished"
    assert record["cells"][0]["run"] == here(STUDY, tmp_path / "here")[0].key  # the same bytes, so the same run


def test_what_was_not_trained_on_flower_is_not_trained_here(tmp_path):
    study = Asked(STUDY).study()
    record = {"cells": [{"run": "x", "error": ""}], "error": ""}
    outcome = next(run_study(study, tmp_path, opens=_trained_elsewhere(record, study)))
    assert outcome.error == "it was not trained on Flower"


def saying(node: Node, said: Any) -> Node:
    """The node, with these versions at its introduction."""
    app = node.app

    def other(message: Any, context: Context) -> Any:
        reply = app(message, context)
        if message.metadata.message_type == "query":
            reply.content = record({**head_of(reply.content), "versions": said})
        return reply

    node.app = other
    return node


@pytest.mark.parametrize("said", [{"leakline": "0.0.1\x1b[31m"}, {}, None, [1], "1.0"])
def test_a_node_of_another_version_is_refused_by_name_before_training(said, tmp_path):
    nodes = own_nodes(STUDY, tmp_path / "n")
    saying(nodes[1], said)
    kept, grid = serving(STUDY, nodes, tmp_path / "out")
    error = kept["cells"][0]["error"]
    assert error.startswith("1 nodes run another leakline than the server's")
    assert "client-2: " in error
    assert "\x1b" not in error
    assert all(node.heads == ["query"] for node in grid.nodes.values())


def test_a_node_of_another_torch_is_named_and_trains(tmp_path, caplog):
    nodes = own_nodes(STUDY, tmp_path / "n")
    saying(nodes[0], {**versions(), "torch": "1.0"})
    with caplog.at_level(logging.WARNING, logger="leakline"):
        kept, _ = serving(STUDY, nodes, tmp_path / "out")
    assert kept["cells"][0]["error"] == ""
    assert "another version than the server's at client-1: torch 1.0" in caplog.text


TWO = STUDY + '[defences]\nnone = []\nglobal-dp = [{ use = "global-dp", noise_multiplier = 1.0, clip = 0.5 }]\n'


@pytest.mark.parametrize("kind", ["a missing node", "two nodes of one name", "data that do not fit"])
def test_a_refused_start_shows_its_reason(kind, tmp_path):
    """As `leakline run --on flower` goes on with what the server's app wrote down, for every cell of the study."""
    nodes = own_nodes(TWO, tmp_path / "n")
    if kind == "a missing node":
        nodes, reason = nodes[:1], "1 of 3 clients have a node, 2 are needed; missing: client-2, client-3"
    elif kind == "two nodes of one name":
        nodes[2].context.node_config["client"], reason = "client-2", "two nodes"
    else:
        change(tmp_path / "n" / "client-2", **MISFITS["classes"][0])
        reason = MISFITS["classes"][1]
    record, _ = serving(TWO, nodes, tmp_path / "out")
    study = Asked(TWO).study()
    outcomes = list(run_study(study, tmp_path / "out", opens=_trained_elsewhere(record, study)))
    assert len(outcomes) == 2
    for outcome in outcomes:
        assert reason in str(outcome.error)
        assert str(tmp_path) not in str(outcome.error)


def test_cells_with_different_data_cannot_be_split_into_one_share_each(tmp_path):
    with pytest.raises(LeaklineError, match="in different ways"):
        write_shares(Asked(STUDY + "[scenarios.a]\n[scenarios.b]\ndata.clients = 2\n").study(), tmp_path)


ADAPTED = STUDY.replace(
    "hidden = [8]", 'hidden = [8]\ntrain = ["dense2"]\nlora = { rank = 2 }\nweights = "w.safetensors"'
)


@pytest.mark.parametrize("nodes_have", ["the same file", "another file", "none"])
def test_frozen_weights_are_made_at_the_nodes_and_compared(nodes_have, tmp_path, monkeypatch):
    def save(path: Path, factor: float) -> None:
        values = torch.linspace(-1, 1, 64 * 8).view(8, 64) * factor
        save_file({"dense1.weight": values}, path / "w.safetensors")

    (tmp_path / "server").mkdir()
    monkeypatch.chdir(tmp_path / "server")
    save(tmp_path / "server", 0.1)
    expected = here(ADAPTED, tmp_path / "here")[0]
    nodes = own_nodes(ADAPTED, tmp_path / "n")
    for node in nodes:
        folder = Path(node.config["state"])
        folder.mkdir(parents=True, exist_ok=True)
        if nodes_have != "none":
            save(folder, 0.1 if nodes_have == "the same file" else 0.2)
        else:
            node.run_config = {**node.run_config, "study": ADAPTED.replace("w.safetensors", "elsewhere.safetensors")}
            node.__post_init__()
    record, _ = serving(ADAPTED, nodes, tmp_path / "out")
    (cell,) = record["cells"]
    if nodes_have == "the same file":
        assert cell["error"] == ""
        run = Store(tmp_path / "out").run(cell["run"])
        assert files(run) == files(expected)
        assert run.final_weights().layout.size == 8 * 10 + 10 + 2 * (64 + 8)
    else:
        said = "not the server's" if nodes_have == "another file" else "no file 'elsewhere.safetensors'"
        assert said in cell["error"]


def test_what_is_pretrained_on_the_servers_data_is_refused_at_nodes(tmp_path):
    text = STUDY.replace("hidden = [8]", "hidden = [8]\npretrain = true").replace(
        "clients = 3", "clients = 3\nserver_validation = 0.2"
    )
    record, _ = serving(text, own_nodes(text, tmp_path / "n"), tmp_path / "out")
    assert "nodes do not hold the server's public data" in record["cells"][0]["error"]


def test_nodes_make_the_features_of_their_own_records(tmp_path):
    text = STUDY.replace("clients = 3", 'clients = 3\nfeatures = { use = "scattering", scales = 1 }')
    assert "features" in text
    expected = here(text, tmp_path / "here")[0]
    raw = own_nodes(STUDY, tmp_path / "raw")  # files of images
    made = own_nodes(text, tmp_path / "made")  # files of features
    for name, nodes in (("a", raw), ("b", made)):
        for node in nodes:
            node.run_config = {"study": text}
            node.__post_init__()
        record, _ = serving(text, nodes, tmp_path / name)
        assert record["cells"][0]["error"] == ""
        run = Store(tmp_path / name).run(record["cells"][0]["run"])
        torch.testing.assert_close(run.final_weights().vector, expected.final_weights().vector, rtol=1e-4, atol=1e-5)
    public = text.replace("scales = 1 }", 'scales = 1, normalise = "public" }\nserver_validation = 0.2')
    record, _ = serving(public, raw, tmp_path / "c")
    assert "nodes make features of their own records alone" in (record["error"] or record["cells"][0]["error"])
