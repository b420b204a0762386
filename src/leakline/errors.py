"""Everything leakline raises on purpose.

LeaklineError
|-- StudyError        the study file is wrong: says line, key and the nearest good key
|-- DataError         a file or data set is missing, corrupt or hostile
|-- StackError        these parts cannot go together: says which and why
|-- RuntimeMissing    an extra is not installed: says the pip line
|-- ClientLost        too few good clients remain to publish a round
`-- StoreError        a run directory is damaged or from another version

Each message has one line of what, one of where, one of how to fix. A wrong value in a constructor is a
plain ``ValueError`` with the value in it.
"""

from __future__ import annotations


class LeaklineError(Exception):
    """Base of all errors that a user can cause and mend."""

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(
            "\n".join(line for line in (what, where and f"  at:  {where}", fix and f"  fix: {fix}") if line)
        )


class StudyError(LeaklineError):
    """The study file is wrong."""


class DataError(LeaklineError):
    """A file or data set is missing, corrupt or hostile."""


class StackError(LeaklineError):
    """Parts that cannot go together."""


class RuntimeMissing(LeaklineError):
    """An optional dependency is not installed."""


class ClientLost(LeaklineError):
    """Too few good clients remain to publish a round."""


class StoreError(LeaklineError):
    """A run directory is damaged or was written by another version."""
