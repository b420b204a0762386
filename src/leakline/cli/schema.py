"""`leakline schema`: a JSON schema of study files, for editors."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference of study files as a page.")] = False,
) -> None:
    """Print a JSON schema of study files: editors complete and check them by it.

    For Even Better TOML (VS Code) and Taplo, save it beside the study and begin the study with "#:schema study.json".
    """
    from leakline.study.schema import schema as made

    if markdown:
        from leakline.study.reference import markdown as page

        print(page(), end="")
        return
    print(json.dumps(made(), indent=1, sort_keys=True))
