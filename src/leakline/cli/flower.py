"""`leakline flower`: a federation on this machine to try things out, and studies as Flower apps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leakline.cli.console import StudyArgument, out
from leakline.cli.loading import TrustOption, load_study
from leakline.errors import LeaklineError, StudyError

if TYPE_CHECKING:
    from leakline.flower.transport.submit import Link
    from leakline.study import Study
    from leakline.study.train import Opens, Progress

flower_app = typer.Typer(no_args_is_help=True, help="Flower: try a deployment out here, or export a study as an app.")

PLACES = ("local", "ray", "flower-sim", "flower")
OnOption = Annotated[
    str, typer.Option("--on", help="local, ray (cells on a cluster), flower-sim (Ray, here) or flower (a deployment).")
]
SuperlinkOption = Annotated[
    str, typer.Option(help="With --on flower: the SuperLink, as host:port (default: that of `leakline flower up`).")
]
CertificateOption = Annotated[
    Path | None, typer.Option("--root-certificates", help="The certificate by which the SuperLink is known.")
]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="With --on flower: no encryption.")]
DeadlineOption = Annotated[
    float, typer.Option(help="The longest that a client (on Flower: a round) may take, seconds; then it goes without.")
]
FolderOption = Annotated[Path, typer.Option("--dir", help="The folder of the trial federation.")]
TRIAL = Path(".leakline-flower")
_STUDY = """# A small study for a trial federation of {nodes} nodes.
name  = "flower-trial"
title = "Handwritten digits at {nodes} nodes: no defence, and global DP"

[data]
use     = "digits"
clients = {nodes}

[model]
use    = "mlp"
hidden = [32]

[training]
rounds        = 3
batch         = 16
learning_rate = 0.3

[strategies]
fedavg = {{ use = "fedavg", weighting = "even" }}

[defences]
none      = []
global-dp = [{{ use = "global-dp", noise_multiplier = 1.0, clip = 0.5 }}]
"""


def check_place(on: str) -> None:
    """Refuse a place that there is not."""
    if on not in PLACES:
        raise LeaklineError(f"there is no place {on!r} to run a study", "--on", f"one of: {', '.join(PLACES)}")


def train(
    on: str,
    loaded: Study,
    asked: tuple[str, Sequence[str], Sequence[str]],
    root: Path,
    link: tuple[str, Path | None, bool],
    deadline: float,
    progress: Progress,
) -> tuple[Study, Opens | None]:
    """Train a study on Flower; returns what is left to do here, and a place that trains nothing more."""
    if on in ("local", "ray"):
        return loaded, None
    from leakline.flower import need_flower

    need_flower(simulation=on == "flower-sim")
    from leakline.flower.transport.drive import on_deployment, on_simulation
    from leakline.flower.transport.submit import Asked

    preset, sets, only = asked
    study = Asked(loaded.text, preset, tuple(sets), tuple(only))
    if on == "flower-sim":
        return on_simulation(study, root, deadline=deadline, progress=progress)
    return on_deployment(study, link_to(*link), root, deadline=deadline, progress=progress)


def link_to(address: str, certificate: Path | None, insecure: bool) -> Link:
    """The SuperLink that options name, or that of the trial federation."""
    from leakline.flower.transport.submit import Link
    from leakline.flower.trial import link_of

    if not address:
        if not (TRIAL / "trial.json").is_file():
            raise LeaklineError("which SuperLink?", "--on flower", "give --superlink HOST:PORT")
        return link_of(TRIAL)
    if insecure == (certificate is not None):
        raise LeaklineError(
            "how is the SuperLink known?", address, "give --root-certificates FILE, or --insecure for no encryption"
        )
    if certificate is not None and not certificate.is_file():
        raise LeaklineError(f"there is no file {certificate.name}", "--root-certificates", "check the path")
    return Link(address, None if certificate is None else certificate.absolute())


@flower_app.command("export")
def export_app(
    study: StudyArgument,
    folder: Annotated[Path, typer.Argument(help="A new folder for the app.")],
    preset: Annotated[str, typer.Option(help="A study's preset.")] = "",
    out_dir: Annotated[Path | None, typer.Option("--out", help="Where the ServerApp keeps results.")] = None,
    trust: TrustOption = False,
) -> None:
    """Write a study as a Flower app of four files, and those of its own code: `flwr run FOLDER` takes it."""
    from leakline.flower import export

    loaded = load_study(study, preset, trust=trust)
    root = (out_dir or Path("runs") / loaded.name).absolute()
    settings: dict[str, str | float] = {"out": str(root), "folder": str(Path.cwd())}
    export(loaded.text, folder, name=loaded.name, preset=preset, settings=settings, code=loaded.foreign)
    out.print(f"{folder}: flwr run {folder} SUPERLINK --stream; results will be in {root} on the SuperLink's machine")


@flower_app.command("split")
def split_data(
    study: StudyArgument,
    folder: Annotated[Path, typer.Argument(help="Where the clients' folders go.")],
    preset: Annotated[str, typer.Option(help="A study's preset.")] = "",
    trust: TrustOption = False,
) -> None:
    """Cut a study's data into one folder for each client, so that every node can be given only its own."""
    from leakline.flower.transport.shares import write_shares

    for name, settings in write_shares(load_study(study, preset, trust=trust), folder).items():
        out.print(f'{name}: --node-config \'client="{name}" data="{settings.absolute()}"\'')


@flower_app.command()
def up(
    nodes: Annotated[int, typer.Option(help="How many nodes (default: the study's clients, or 3).")] = 0,
    study: Annotated[str, typer.Option(help="A study whose data the nodes share (default: digits).")] = "",
    preset: Annotated[str, typer.Option(help="A study's preset.")] = "",
    data: Annotated[Path | None, typer.Option(help="Or a folder with one .npz, .toml or folder per node.")] = None,
    folder: FolderOption = TRIAL,
    insecure: Annotated[bool, typer.Option("--insecure", help="No encryption, and any node may join.")] = False,
    trust: TrustOption = False,
) -> None:
    """Start a SuperLink and SuperNodes on this machine; again: start what has died."""
    from leakline.flower import need_flower

    need_flower()
    from leakline.flower import trial

    fresh = not (folder / "trial.json").is_file()
    chosen = _nodes(nodes, study, preset, data, folder, trust) if fresh else []
    if not fresh and (study or data or nodes):
        raise StudyError("there is a trial federation already", folder.name, "`leakline flower down` ends it")
    link = trial.up(folder, chosen, insecure=insecure)
    names = [name for name in trial.running(folder) if name != "superlink"]
    known = "--insecure" if link.certificate is None else f"--root-certificates {_short(link.certificate)}"
    example = study or ("STUDY" if data else _short(folder / "study.toml"))
    out.print(f"SuperLink at {link.address}, {len(names)} nodes: {', '.join(names)}")
    out.print(f"leakline run {example} --on flower --superlink {link.address} {known}")
    out.print("leakline flower down" + ("" if folder == TRIAL else f" --dir {folder}"))


def _nodes(count: int, study: str, preset: str, data: Path | None, folder: Path, trust: bool) -> list[Any]:
    from leakline.flower.transport.shares import write_shares
    from leakline.flower.trial import Node
    from leakline.study.spec import parse

    if count < 0:
        raise LeaklineError(f"so many nodes there cannot be: {count}", "--nodes", "a number above 0")
    if data is not None:
        paths = sorted(p for p in data.iterdir() if p.is_dir() or p.suffix in (".npz", ".toml"))
        paths = [p / "data.toml" if (p / "data.toml").is_file() else p for p in paths]
        chosen = [Node(p.parent.name if p.name == "data.toml" else p.stem, p) for p in paths]
        if not chosen or len(chosen) < count:
            raise LeaklineError(f"{len(chosen)} nodes' data are there, not {max(count, 1)}", data.name)
        return chosen[: count or len(chosen)]
    if study:
        loaded = load_study(study, preset, trust=trust)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        text = _STUDY.format(nodes=count or 3)
        (folder / "study.toml").write_text(text, encoding="utf-8")
        loaded = parse(text)
    shares = write_shares(loaded, folder / "nodes")
    if count and count != len(shares):
        raise StudyError(f"the study has {len(shares)} clients, not {count}", study, "leave --nodes out")
    return [Node(name, settings) for name, settings in shares.items()]


@flower_app.command()
def down(folder: FolderOption = TRIAL) -> None:
    """End exactly the processes that `up` started."""
    from leakline.flower import trial

    ended = trial.down(folder)
    out.print(f"ended: {', '.join(ended) or 'nothing was running any more'}")


@flower_app.command()
def status(folder: FolderOption = TRIAL) -> None:
    """Which processes of the trial federation are alive."""
    from leakline.flower import trial

    for name, alive in trial.running(folder).items():
        out.print(f"{name}: {'running' if alive else 'gone'}")


def _short(path: Path) -> str:
    """A path from here, where it lies below."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)
