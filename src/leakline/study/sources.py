"""Cells that follow another: what that one's run wrote down is told to theirs before it begins."""

from __future__ import annotations

from leakline.errors import StackError, StudyError
from leakline.federation import Federation
from leakline.study.cells import Cell, Study
from leakline.study.describe import description, key_of
from leakline.study.store import Store


def check_source(study: Study, cell: Cell, federation: Federation) -> None:
    """Refuse a cell that follows one which is not there, or which differs in more than its defences."""
    source = study.source_of(cell)
    if source is None:
        return
    there, wanted = source.federation().granted, federation.source
    assert wanted is not None
    if there.rounds != federation.rounds:
        raise StudyError(
            f"it follows {source.name}, which has {there.rounds} rounds where it has {federation.rounds}",
            cell.name,
            "give both the same rounds",
        )
    if key_of(description(there)) != key_of(description(wanted)):
        raise StudyError(
            f"it follows {source.name}, which differs from it in more than its defences",
            cell.name,
            "give both the same data, model, training and seed",
        )


def sourced(store: Store, federation: Federation) -> Federation:
    """The federation, told what the run that it follows wrote down, if it follows one; that run must be finished."""
    source = federation.source
    if source is None:
        return federation
    run = store.run(key_of(description(source)))
    if (end := run.end) is None or end["status"] != "finished":
        follower = federation.stack.follower
        assert follower is not None
        raise StackError(
            f'the run with the defence "{follower.follows}" that this one follows is not finished',
            run.key,
            "mend that cell, and run the study again",
        )
    return federation.told(run.key, [record["facts"] for record in run.rounds()])
