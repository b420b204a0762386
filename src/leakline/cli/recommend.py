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
    from leakline.decide.recommend import ARMS, case_of, outlooks

    case = case_of(_task(data, clients, trust), unit, epsilon, delta)
    found = outlooks(case, ARMS)
    if not found:
        raise LeaklineError(
            f"nothing of what is known fits inputs of shape {case.shape}", data, "see docs/what-to-use.md"
        )
    if as_json:
        out.print_json(json.dumps({"mu": case.mu, "units": case.units, "outlooks": [_plain(o) for o in found]}))
        return
    _advise(case, found)


def _advise(case: Case, found: list[Outlook]) -> None:
    from rich.table import Table

    from leakline.decide.recommend import most_values, units_needed, ways
    from leakline.text import clean

    out.print(
        f"{case.units:,} {case.unit}s ({case.records:,} training records) at {case.clients} clients; epsilon "
        f"{case.epsilon:g} at delta {case.delta:g} for one {case.unit} is mu = {case.mu:.3g}."
    )
    if case.delta >= 1 / case.units:
        out.print(f"delta is not below 1/{case.units}: one {case.unit} could be given away whole at that delta.")
    table = Table(title="noise over the longest signal there can be", title_justify="left")
    for head in ("what is trained", "values", *(way.defence for way in ways(case)), "outlook"):
        table.add_column(head, justify="left" if head in ("what is trained", "outlook") else "right")
    for arm in dict.fromkeys(o.arm for o in found):
        by_way = {o.way: o for o in found if o.arm == arm}
        best = min(by_way.values(), key=lambda o: o.ratio)
        figures = (f"{by_way[way].ratio:.2g}" for way in ways(case))
        table.add_row(arm.name, f"{best.trained:,}", *figures, best.verdict)
    out.print(table)
    for way in ways(case):
        needs = f" (needs {way.needs})" if way.needs else ""
        most = f"{most_values(case, way):,} trained values"
        out.print(clean(f"{way.defence}{needs}: a network of more than {most} learns less than the noise it gets."))
    best = found[0]
    if best.verdict == "noise drowns it":
        out.print(
            f"Nothing here is worth a try: even {best.arm.name} would want "
            f"{units_needed(best, case):,} {case.unit}s, a larger epsilon, or another unit."
        )
        return
    out.print(clean(f"\nTry first: {best.arm.name} with {best.way.defence}. In a study file:\n"))
    stack = f"wanted = [{{ use = {_use(best)}, epsilon = {case.epsilon:g}, clip = 1.0 }}]"
    out.print(f"{best.arm.lines}\n\n[defences]\n{stack}", markup=False, highlight=False, soft_wrap=True)
    out.print("\nThe ratio is the best case, and no task is in it: docs/what-to-use.md has what was measured.")


def _use(outlook: Outlook) -> str:
    name, comma, rest = outlook.way.defence.partition(",")
    return f'"{name}"{comma}{rest}'


def _plain(outlook: Outlook) -> dict[str, Any]:
    return {
        "arm": outlook.arm.name, "values": outlook.trained, "defence": outlook.way.defence, "ratio": outlook.ratio,
        "outlook": outlook.verdict, "study": outlook.arm.lines,
    }  # fmt: skip


def _task(name: str, clients: int, trust: bool) -> Task:
    """A data set of the menu shared out evenly, or the data of a study's first cell."""
    from leakline.data import DATASETS, Even, partition

    if name not in DATASETS:
        return load_study(name, trust=trust).cells[0].federation().task
    try:
        source = DATASETS[name]()
    except TypeError as error:
        raise LeaklineError(
            f"{name} needs settings of its own", fix="write them into a study file, and give that instead"
        ) from error
    if not source.available():
        raise LeaklineError(f"{name} is not here", fix=f"it needs {source.needs}")
    return partition(source.load(), Even(), clients=clients)
