"""Data that are refused, with everything that is wrong with them at once and what is left without that.

A run ends here. A check goes on with what is left, so that broken files do not hide what else is wrong with a study.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leakline.data.base import Dataset
from leakline.errors import DataError


class Refused(DataError):
    """Each thing that is wrong with a data set; ``rest`` is the data set without it, None where nothing is left."""

    def __init__(self, each: Sequence[DataError], rest: Dataset | None) -> None:
        first = each[0]
        if len(each) == 1:
            super().__init__(first.what, first.where, first.fix)
        else:
            super().__init__("\n".join(str(error) for error in each))
        self.each, self.rest = tuple(each), rest


def unless(wrong: Sequence[DataError], make: Callable[[], Dataset]) -> Dataset:
    """The data set that ``make`` makes, or all that was and is found wrong with it."""
    try:
        dataset = make()
    except Refused as error:
        raise Refused([*wrong, *error.each], error.rest) from error
    except DataError as error:
        if not wrong:
            raise
        raise Refused([*wrong, error], None) from error
    if wrong:
        raise Refused(wrong, dataset)
    return dataset
