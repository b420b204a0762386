"""`leakline recommend`: from sizes alone, what is worth trying for a promise, and what cannot work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from leakline.cli.console import JsonOption, out
from leakline.cli.loading import TrustOption, load_study
from leakline.errors import LeaklineError

if TYPE_CHECKING:
    from leakline.data.base import Task
    from leakline.decide.recommend import Case, Outlook


def recommend(
    data: Annotated[str, typer.Argument(help="A data set by name, or a study whose data are meant.")],
    unit: Annotated[Literal["record", "patient", "client"], typer.Option(help="Whom the promise is for.")] = "record",
    epsilon: Annotated[float, typer.Option(min=0.01, max=100, help="The promise that is wanted.")] = 3.0,
    delta: Annotated[float, typer.Option(min=1e-12, max=0.1, help="Its delta.")] = 1e-5,
    clients: Annotated[int, typer.Option(min=1, max=100_000, help="How many clients share a data set evenly.")] = 6,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is worth trying first for a promise, and what cannot work: noise against signal, nothing is trained."""
    from leakline.decide.recommend import case_of, outlooks

    task, table = _task(data, clients, trust)
    if task.kind != "classification":
        raise LeaklineError(
            f"nothing is known about {task.kind} under a promise", data, "see docs/what-to-use.md for what is"
        )
    case = case_of(task, unit, epsilon, delta)
    found = outlooks(case)
    if not found:
        raise LeaklineError(
            f"nothing of what is known fits inputs of shape {case.shape}", data, "see docs/what-to-use.md"
        )
    if as_json:
        told = [_plain(o, case, table) for o in found]
        out.print_json(json.dumps({"mu": case.mu, "units": case.units, "outlooks": told}))
        return
    _compare(case, found)
    _advise(case, found[0], table)


def _compare(case: Case, found: list[Outlook]) -> None:
    from rich.table import Table

    from leakline.decide.recommend import FIRST, most_values, ways
    from leakline.text import clean

    held = f"{case.units:,} {case.name}s ({case.records:,} training records) at {case.clients} clients"
    promise = f"epsilon {case.epsilon:g} at delta {case.delta:g} for one {case.name} is mu = {case.mu:.3g}"
    out.print(clean(f"{held}, inputs of shape {case.shape}; {promise}."), markup=False)
    if case.delta >= 1 / case.units:
        out.print(f"delta is not below 1/{case.units}: one {case.unit} could be given away whole at that delta.")
    table = Table(title="noise over the longest signal there can be", title_justify="left")
    for head in ("what is trained", "values", *(way.defence for way in ways(case)), "outlook"):
        table.add_column(head, justify="left" if head in ("what is trained", "outlook") else "right")
    for arm in dict.fromkeys(o.arm for o in found):
        by_way = {o.way: o for o in found if o.arm == arm}
        best = next(o for o in found if o.arm == arm)
        table.add_row(arm.name, f"{arm.values:,}", *(f"{by_way[way].ratio:.2g}" for way in ways(case)), best.verdict)
    out.print(table)
    for way in ways(case):
        needs = f" (needs {way.needs})" if way.needs else ""
        most = f"more than {most_values(case, way):,} trained values"
        out.print(clean(f"{way.defence}{needs}: with {most} there is more noise than a network can have learned."))
    if any(o.arm.linear and o.ratio > 1 and o.verdict != FIRST for o in found):
        out.print("A linear head beyond that may still work, since an input meets the noise along itself alone.")


def _advise(case: Case, best: Outlook, table: str) -> None:
    from leakline.decide.recommend import DROWNED, FIRST, units_needed
    from leakline.text import clean

    if best.verdict == DROWNED:
        out.print(
            f"Nothing here is worth a try: even {best.arm.name} would want "
            f"{units_needed(best, case):,} {case.name}s, a larger epsilon, or another unit."
        )
        return
    first = "Try first" if best.verdict == FIRST else "Nothing is worth trying first. What may work"
    out.print(clean(f"\n{first}: {best.arm.name} with {best.way.defence}. In a study file:\n"))
    out.print(_study(best, case, table), markup=False, highlight=False, soft_wrap=True)
    out.print(
        "\nThe ratio is the best case, and no task is in it. What the study frontier measured of these arms: "
        "docs/what-to-use.md."
    )


def _study(outlook: Outlook, case: Case, table: str) -> str:
    """A study file of its own: the data, what is trained, and the promise."""
    from leakline.decide.recommend import stack_of

    arm, summed = outlook.arm, outlook.way.defence == "distributed-dp"
    few = f"min_clients = {case.clients}\n\n" if summed else ""
    training = f'{arm.training}\nsecure_aggregation = "assumed"' if summed else arm.training
    return (
        f'name = "wanted"\n{few}[data]\n{table}{arm.data}\n[model]\n{arm.model}\n\n[training]\n{training}\n\n'
        f'[strategies]\nfedavg = {{ use = "fedavg", weighting = "even" }}\n\n[defences]\n{stack_of(outlook, case)}'
    )


def _plain(outlook: Outlook, case: Case, table: str) -> dict[str, Any]:
    return {
        "arm": outlook.arm.name, "values": outlook.arm.values, "defence": outlook.way.defence, "ratio": outlook.ratio,
        "met": outlook.met, "outlook": outlook.verdict, "study": _study(outlook, case, table),
    }  # fmt: skip


SHARES: dict[str, Any] = {"client_test": 0.0, "server_test": 0.2, "server_validation": 0.1}
"""As in the study `frontier`: a fifth for testing, a tenth taken as public, the rest is trained on."""
SIDE = 32
"""Larger images are brought to this size, as there."""


def _task(name: str, clients: int, trust: bool) -> tuple[Task, str]:
    """A data set of the menu shared out evenly, or the data of a study's first cell; and the lines that say so."""
    from leakline.data import DATASETS, Even, partition

    if name not in DATASETS:
        first = load_study(name, trust=trust).cells[0]
        return first.federation().task, "# as they are, and:\nserver_validation = 0.1\n"
    try:
        source = DATASETS[name]()
    except TypeError as error:
        raise LeaklineError(
            f"{name} needs settings of its own", fix="write them into a study file, and give that instead"
        ) from error
    if not source.available():
        raise LeaklineError(f"{name} is not here", fix=f"it needs {source.needs}")
    dataset, size = source.load(), ""
    if dataset.train.x.ndim == 4 and min(dataset.train.x.shape[2:]) > SIDE and hasattr(source, "size"):
        dataset, size = DATASETS[name](size=SIDE).load(), f"size = {SIDE}\n"  # type: ignore[call-arg]
    shares = "".join(f"{key} = {value}\n" for key, value in SHARES.items())
    return partition(dataset, Even(), clients, **SHARES), f'use = "{name}"\n{size}clients = {clients}\n{shares}'
