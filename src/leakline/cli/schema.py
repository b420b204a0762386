"""`leakline schema`: a JSON schema of study files, for editors."""

from __future__ import annotations

import json


def schema() -> None:
    """Print a JSON schema of study files: editors complete and check them by it.

    For Even Better TOML (VS Code) and Taplo, save it beside the study and begin the study with "#:schema study.json".
    """
    from leakline.study.schema import schema as made

    print(json.dumps(made(), indent=1, sort_keys=True))
