"""`leakline check`: a study looked at before anything is trained."""

from __future__ import annotations

import json

import typer

from leakline.cli.console import JsonOption, OnlyOption, PresetOption, SetOption, StudyArgument, out, print_card
from leakline.cli.loading import TrustOption, load_study


def check(
    study: StudyArgument,
    preset: PresetOption = "",
    sets: SetOption = [],  # noqa: B006
    only: OnlyOption = [],  # noqa: B006
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Validate a study without training: partition, model, every formal card, time, memory and disk."""
    from leakline.study.check import check_study, look_further
    from leakline.study.spec import Mistaken

    try:
        loaded = load_study(study, preset, sets, trust)
    except Mistaken as error:
        raise look_further(error) from error
    checked = check_study(loaded.only(only))
    if as_json:
        out.print_json(json.dumps(checked.as_dict()))
    else:
        checked.show(out, print_card)
    if checked.problems:
        raise typer.Exit(2)
