"""Cells on Ray: the files that travel, what is refused in one line, and (slow) clusters that lose a node."""

from __future__ import annotations

import shutil
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest

from leakline.errors import StackError, StoreError
from leakline.study.on_ray import OnRay
from leakline.study.ray_task import Asked, Order, do_cell, read_files, write_files
from leakline.study.run import check_parts, run_study
from leakline.study.spec import parse

STUDY = """
name = "grid"
noise = "seeded"
seeds = {seeds}
data = {{ use = "digits", limit = 120, clients = 3, client_test = 0.2 }}
model = {{ use = "mlp", hidden = [8] }}
training = {{ rounds = {rounds}, batch = 16, learning_rate = 0.3 }}
attacks = [{{ use = "loss-threshold", records = 10 }}]

[strategies]
fedavg = {{ use = "fedavg", weighting = "even" }}

[defences]
none = []
global-dp = [{{ use = "global-dp", noise_multiplier = 1.0, clip = 0.5 }}]
"""
SMALL = STUDY.format(seeds=1, rounds=2)


class Deaf:
    """An ear that nobody asks."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.tell = self

    def remote(self, *told: object) -> None:
        self.told.append(told)


def content(root: Path) -> dict[str, bytes]:
    """Every byte of the store, but for times and claims."""
    paths = [p for p in root.rglob("*") if p.is_file() and not p.name.startswith(".") and p.name != "log.jsonl"]
    return {str(p.relative_to(root)): p.read_bytes() for p in paths}


def order(**changes) -> Order:
    from leakline import __version__

    keys = tuple(check_parts(parse(SMALL)))
    settings = {"asked": Asked(SMALL), "number": 0, "keys": keys, "version": __version__, "root": "", "workers": 1}
    return Order(**(settings | {"deadline": 60.0, "planned": None} | changes))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    assert [outcome.error for outcome in run_study(parse(SMALL), root, workers=1)] == ["", ""]
    return root


def test_a_node_that_does_not_see_the_directory_hands_the_files_of_the_run_back(whole, tmp_path):
    for number in (0, 1):
        answer, files = do_cell(order(number=number), Deaf())
        assert answer["how"] == "trained"
        write_files(tmp_path, files)
    assert content(tmp_path / "runs") == content(whole / "runs")


def test_a_node_goes_on_with_what_there_is_of_a_run(whole, tmp_path):
    key = check_parts(parse(SMALL))[0]
    shutil.copytree(whole, tmp_path / "store")
    for name in ("end.json", "attacks.jsonl"):
        (tmp_path / "store" / "runs" / key / name).unlink()
    answer, files = do_cell(order(files=read_files(tmp_path / "store", key)), Deaf())
    assert answer["how"] == "trained"
    assert {name.split("/")[1] for name in files} == {key}
    assert len(files[f"runs/{key}/log.jsonl"].splitlines()) == 2  # no round was trained again
    assert files[f"runs/{key}/end.json"] == (whole / "runs" / key / "end.json").read_bytes()


def test_a_node_that_is_another_is_one_line():
    answer, files = do_cell(order(version="0.0.1"), Deaf())
    assert (answer["how"], files) == ("failed", {})
    assert "the driver 0.0.1" in answer["error"]
    answer, _ = do_cell(order(keys=("abc", "def")), Deaf())
    assert "other data, or another torch" in answer["error"]
    answer, _ = do_cell(order(asked=Asked("no study")), Deaf())
    assert answer["how"] == "failed"


@pytest.mark.parametrize(
    "name",
    ["study.json", "/etc/x", "runs/../../x", "runs/a/..", "runs/a\\b/\0", "../runs/a", "runs/a/.training.9", "runs//x"],
)
def test_files_of_a_node_stay_in_the_runs(name, tmp_path):
    write_files(tmp_path, {f"runs/a/kept/round-0000/{'c' * 64}.part-1.safetensors": b""})
    with pytest.raises(StoreError, match="not a file of a run"):
        write_files(tmp_path / "store", {name: b"x"})
    assert not list(tmp_path.rglob("x"))


# --- real clusters ---------------------------------------------------------------------------------------------------


@pytest.fixture
def ray():
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield ray
        ray.shutdown()


def study(rounds: int, seeds: int) -> tuple[str, object]:
    text = STUDY.format(seeds=seeds, rounds=rounds)
    return text, parse(text)


def on_ray(text: str, root: Path, **settings):
    engine = partial(OnRay, asked=Asked(text), **settings)
    return list(run_study(parse(text), root, engine=engine, watch=lambda standing: None))


@pytest.mark.slow
def test_a_ray_of_this_machine_leaves_the_bytes_of_one_process(ray, whole, tmp_path):
    assert [outcome.error for outcome in on_ray(SMALL, tmp_path)] == ["", ""]
    assert content(tmp_path) == content(whole)
    assert not ray.is_initialized()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="nodes are killed by their processes")
@pytest.mark.parametrize("shared", [None, False])  # two nodes of one machine do share a disk
def test_a_node_that_dies_costs_nothing(shared, ray, tmp_path):
    from ray.cluster_utils import Cluster

    text, asked = study(rounds=60, seeds=4)
    assert not any(outcome.error for outcome in run_study(asked, tmp_path / "whole", workers=1))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    killed, outcomes = False, []
    engine = partial(OnRay, asked=Asked(text), shared=shared)
    for outcome in run_study(asked, tmp_path / "cluster", engine=engine, watch=lambda standing: None):
        outcomes.append(outcome)
        if not killed:
            cluster.remove_node(second, allow_graceful=False)
            killed = True
    assert [outcome.error for outcome in outcomes] == [""] * 8
    assert content(tmp_path / "cluster") == content(tmp_path / "whole")
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_what_a_cluster_cannot_do_is_one_line(ray, tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "memory": 2**28})
    for address, text in [
        (cluster.address, "has 1 cores, 4.. MB of memory"),
        ("127.0.0.1:1", "Ray does not answer"),
    ]:
        with pytest.raises(StackError, match=text) as error:
            on_ray(SMALL, tmp_path / "store", address=address)
        assert "\n" not in error.value.what
        assert not (tmp_path / "store").exists()
    monkeypatch.setattr(ray, "__version__", "2.0.0")
    with pytest.raises(StackError, match="another version") as error:
        on_ray(SMALL, tmp_path / "store", address=cluster.address)
    assert "\n" not in error.value.what
    assert not (tmp_path / "store").exists()
    cluster.shutdown()
