"""Who takes part in a federation, who judges it, how it is computed: three small values.

A field made by `setting` is all there is to a setting: its name is the key of a study file, its annotation and limits
are what both Python and the file are held to, and it counts for the hash under which a run is stored.
"""

from __future__ import annotations

import operator
import typing
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal, Self

Table = Literal["study", "training"]
"""Where a study file has a key: at its top, or in [training]."""

_LIMITS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "above"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "below"),
}


def setting(default: Any, table: Table = "training", *, quiet: bool = False, **limits: float) -> Any:
    """A field that a study file may set, within ``limits`` (ge, gt, le, lt).

    ``quiet``: not written down with a run while at its default, so that runs from before it existed keep their hash.
    """
    return field(default=default, metadata={"table": table, "quiet": quiet, "limits": limits})


@dataclass(frozen=True)
class Settings:
    """A value made of settings, some of which may lie in values of their own; each is reached by its bare name."""

    def __post_init__(self) -> None:
        """Refuse settings beyond their limits, and words that are none of those there are."""
        hints = typing.get_type_hints(type(self))
        for each in fields(self):
            given = getattr(self, each.name)
            for name, bound in each.metadata.get("limits", {}).items():
                fits, words = _LIMITS[name]
                if not fits(given, bound):
                    raise ValueError(f"{each.name} must be {words} {bound:g}: {given}")
            hint = hints[each.name]
            choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else (given,)
            if given not in choices:
                raise ValueError(f"{each.name} must be {' or '.join(map(repr, choices))}: {given!r}")

    def but(self, **settings: Any) -> Self:
        """The same with other settings, wherever they lie: ``federation.but(rounds=3, sampling="poisson")``."""
        for each in fields(self):
            inner = getattr(self, each.name)
            if isinstance(inner, Settings):
                moved = {name: settings.pop(name) for name in [f.name for f, _ in inner.flat()] if name in settings}
                if moved:
                    settings[each.name] = settings.get(each.name, inner).but(**moved)
        return replace(self, **settings)

    def flat(self) -> Iterator[tuple[Field[Any], Any]]:
        """Every field with its value, those of inner values in their place: what counts for the hash of a run."""
        for each in fields(self):
            value = getattr(self, each.name)
            yield from value.flat() if isinstance(value, Settings) else ((each, value),)

    @classmethod
    def keys(cls, table: Table) -> dict[str, tuple[Any, Field[Any]]]:
        """What a table of a study file may hold: the annotation and the field of each key."""
        hints, keys = typing.get_type_hints(cls), dict[str, tuple[Any, Field[Any]]]()
        for each in fields(cls):
            kind = hints[each.name]
            if isinstance(kind, type) and issubclass(kind, Settings):
                keys |= kind.keys(table)
            elif each.metadata.get("table") == table:
                keys[each.name] = (kind, each)
        return keys


@dataclass(frozen=True)
class Cohort(Settings):
    """Who takes part in a round, and what the server sees of them.

    ``sampling``: everybody ("full"), each client independently with probability ``participation`` ("poisson"), or a
    share of that size ("fixed"). ``on_bad_client``: "drop" goes on without a client whose answer is unusable,
    "stop" ends the run before anything is published. ``min_clients``: fewer usable
    answers end the run (a sum that nobody may look into needs three). ``max_norm``: a longer update is unusable (0:
    none is). ``secure_aggregation``: "assumed" lets the server's seat see only the sum of a round's updates.
    No protocol is run for it; the card says that it was assumed. ``planned``: for how many clients means are
    planned (0: as many as there are); a client more or less then changes no public number.
    """

    sampling: Literal["full", "poisson", "fixed"] = setting("full")
    participation: float = setting(1.0, gt=0, le=1)
    min_clients: int = setting(2, "study", ge=1)
    max_norm: float = setting(0.0, "study", quiet=True, ge=0)
    on_bad_client: Literal["drop", "stop"] = setting("drop", "study")
    secure_aggregation: Literal["none", "assumed"] = setting("none", quiet=True)
    planned: int = setting(0, quiet=True, ge=0)

    @property
    def quorum(self) -> int:
        """How many usable answers a round needs, where so many clients were asked."""
        return max(self.min_clients, 3) if self.secure_aggregation == "assumed" else self.min_clients

    def expected(self, clients: int) -> float:
        """How many of so many clients (or of those that were planned) a round has on average."""
        clients = self.planned or clients
        if self.sampling == "fixed":
            return float(max(1, round(clients * self.participation)))
        return float(clients) if self.sampling == "full" else max(1.0, round(clients * self.participation, 9))


@dataclass(frozen=True)
class Judging(Settings):
    """What a model is judged by, by whom, and when a study need not go on.

    ``loss``: what clients minimise ("default": what the task's kind has), and with it which figures are taken.
    ``evaluate``: who judges the model after each round: the server on its test data, the clients on theirs (with
    their personal layers), "both": the server, and each client by name beside it; or "auto": the clients where some
    layers are personal, the server otherwise.
    ``average``: utility is judged on an exponential average of the published models, with this weight on the past (0:
    on each as it is); post-processing of what is published, so it costs no privacy.
    ``validation``: the server also judges each round's model by its validation data ("server"), so that the round which
    is best by them can be read off afterwards. Nothing that is published depends on it; whoever publishes that round
    alone has chosen it by data that no promise covers, and the card says so.
    ``patience``: a study stops once the loss so measured (mean over clients) has not fallen for so many rounds.
    """

    loss: str = setting("default")
    evaluate: Literal["auto", "server", "clients", "both"] = setting("auto", quiet=True)
    average: float = setting(0.0, quiet=True, ge=0, lt=1)
    patience: int = setting(0, quiet=True, ge=0)
    validation: Literal["none", "server"] = setting("none", quiet=True)


@dataclass(frozen=True)
class Engine(Settings):
    """How it is computed: small clients in vectorised groups ("auto") or one by one ("off"), and on which device.

    ``convolutions``: "batch-last" has another order of memory for small plain networks on a CPU (`bench.batch_last`):
    a step in 0.4 to 0.8 of the time (with AVX-512 in up to 1.4 of it), equal to rounding. Shadows are trained so.
    """

    together: Literal["auto", "off"] = setting("auto")
    convolutions: Literal["torch", "batch-last"] = setting("torch", quiet=True)
    device: str = setting("cpu", "study")
