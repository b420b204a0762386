"""What a node holds: its name, its own data, and what it tells the server about them.

In a deployment both come from the SuperNode's own --node-config: ``client="north" data="/srv/north.npz"``, and
``state="/srv/leakline"`` for a folder to remember private layers in. ``data`` is an .npz file, a folder of images by
class, or a .toml file with a [data] table like a study's. In Flower's simulation node number i plays the study's
i-th client.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leakline.data import DATASETS, FEATURES, Client, Data, Dataset, is_safe
from leakline.data.elsewhere import relabelled
from leakline.data.features import featured
from leakline.data.split import split, stream
from leakline.errors import DataError
from leakline.names import printable
from leakline.study.build import Mistakes, build

Config = Mapping[str, Any]


def simulated(config: Config) -> bool:
    """Whether a node is one of Flower's simulated ones."""
    return "client" not in config and "partition-id" in config


def name_of(config: Config, names: Sequence[str]) -> str:
    """The client that a node plays, or "" for none."""
    if simulated(config):
        position = int(config["partition-id"])
        return names[position] if position < len(names) else ""
    name = str(config.get("client", ""))
    return name if is_safe(name) else ""


def state_folder(config: Config, run_config: Config, name: str) -> Path | None:
    """Where a node may write down what its client must not forget; None for nowhere."""
    if simulated(config):
        return Path(str(run_config["out"])) / "nodes" / name if run_config.get("out") else None
    return Path(str(config["state"])) / name if config.get("state") else None


def own_client(config: Config, name: str, fit: Mapping[str, Any]) -> Client:
    """A node's client: its own data, cut and labelled as the study wants them, or an error that says what does not fit.

    ``fit`` is what the server says must hold: shape, classes, kind, and how clients put test data aside.
    """
    where = printable(name)
    if not config.get("data"):
        raise DataError("this node has no data", where, 'give data="PATH" in its --node-config')
    dataset = relabelled(load_own(Path(str(config["data"]))), fit["classes"], where)
    if dataset.kind != fit["kind"]:
        raise DataError(f"its data are for {dataset.kind}, the study is about {fit['kind']}", where)
    shape = list(dataset.train.x.shape[1:])
    if fit.get("features") and shape != list(fit["shape"]):  # a file may hold features already
        mistakes = Mistakes(where, {})
        features = build(FEATURES, fit["features"], ("data", "features"), mistakes)
        if features is None:
            raise DataError(mistakes.text(), where)
        dataset = featured(dataset, features)
    if list(dataset.train.x.shape[1:]) != list(fit["shape"]):
        raise DataError(
            f"its examples have shape {tuple(dataset.train.x.shape[1:])}, the study's {tuple(fit['shape'])}", where
        )
    if dataset.test is not None:
        return Client(name, dataset.train, dataset.test)
    rest, held = split(dataset.train, float(fit["client_test"]), stream(int(fit["seed"]), "client-test", name))
    return Client(name, dataset.train.take(rest), dataset.train.take(held) if len(held) else None)


def facts_of(client: Client) -> dict[str, Any]:
    """What a node tells the server of its data: how many, and a hash by which a run knows them again; no labels."""
    return {part: _facts(data) for part, data in (("train", client.train), ("test", client.test))}


def _facts(data: Data | None) -> dict[str, Any] | None:
    return None if data is None else {"count": len(data), "digest": data.fingerprint()}


def load_own(path: Path) -> Dataset:
    """What lies at a node, as its data setting names it."""
    if path.suffix == ".npz":
        return DATASETS["npz"](path=str(path)).load()  # type: ignore[call-arg]
    if path.is_dir():
        return DATASETS["image-folder"](path=str(path)).load()  # type: ignore[call-arg]
    if path.suffix != ".toml" or not path.is_file():
        raise DataError(
            "this node's data are not where its --node-config says", path.name, "an .npz, a folder, a .toml"
        )
    try:
        table = dict(tomllib.loads(path.read_text(encoding="utf-8"))["data"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError("this node's settings cannot be read", path.name, "a TOML file with a [data] table") from error
    if isinstance(table.get("path"), str):
        table["path"] = str(path.parent / table["path"])  # beside the settings, wherever the SuperNode was started
    mistakes = Mistakes(path.name, {})
    source = build(DATASETS, table, ("data",), mistakes)
    if source is None:
        raise DataError(mistakes.text(), path.name)
    return source.load()  # type: ignore[no-any-return]
