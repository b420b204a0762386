"""A verb of the command line whose help says what its arguments are."""

from __future__ import annotations

import inspect
import re
import typing

import click
import typer.core
from typer.models import ArgumentInfo


class Verb(typer.core.TyperCommand):
    """A command. Newer clicks forget the help of typer's arguments, and typer escapes brackets that nobody renders."""

    def get_help(self, ctx: click.Context) -> str:
        """The help page."""
        said = self._said() if self.callback is not None else {}
        for parameter in self.params:
            if isinstance(parameter, typer.core.TyperArgument) and not parameter.help:
                parameter.help = said.get(parameter.name or "")
        text = super().get_help(ctx).replace("\\[", "[")
        if "\nPositional arguments:\n" in text:  # where click lists them itself, typer does so once more
            text = re.sub(r"\nArguments:\n(?:  .*\n)+", "", text)
        return text.replace("\nPositional arguments:\n", "\nArguments:\n")

    def _said(self) -> dict[str, str | None]:
        """The help of every argument, as the verb's own function has it."""
        assert self.callback is not None
        hints = typing.get_type_hints(inspect.unwrap(self.callback), include_extras=True)
        found = {name: typing.get_args(hint)[1:] for name, hint in hints.items()}
        return {n: i.help for n, infos in found.items() for i in infos if isinstance(i, ArgumentInfo)}
