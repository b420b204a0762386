"""A study as a Flower app of four files: what `flwr run` takes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from leakline.errors import StudyError
from leakline.foreign import Foreign, travelling

FLOWER = "1.41.0"
_LICENSE = """Apache-2.0

This app is generated: the study inside is yours, the few lines around it come with leakline under the Apache License,
Version 2.0 (https://www.apache.org/licenses/LICENSE-2.0).
"""
_CLIENT = '''"""A client of the study: its data come from the node's own configuration."""

from leakline.flower import client_app

app = client_app()
'''
_SERVER = '''"""The server of the study: trains every cell and keeps leakline's store."""

from leakline.flower import server_app

app = server_app()
'''


def export(
    text: str,
    folder: Path,
    *,
    name: str = "study",
    preset: str = "",
    sets: Sequence[str] = (),
    only: Sequence[str] = (),
    settings: Mapping[str, str | float] | None = None,
    code: Sequence[Foreign] = (),
) -> Path:
    """Write the app; ``settings`` go into its run configuration (out, folder, deadline, wait).

    ``code``: what the study names outside of leakline; files of the user's own (`net.py` of "net:build", or the whole
    package of a longer name) travel with the app, so that nodes find them. Installed packages do not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise StudyError("this folder is not empty", folder.name, "give a new folder")
    config: dict[str, str | float] = {
        "study": text, "preset": preset, "sets": json.dumps(list(sets)), "only": json.dumps(list(only)),
        "out": "", "folder": "", "submission": "", "deadline": 3600.0, "wait": 60.0,
        **(settings or {}),
    }  # fmt: skip
    # A JSON string is a TOML basic string, but for pairs of surrogates: so what is not ASCII stays as it is.
    lines = "\n".join(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in config.items())
    project = f"""[project]
name = "leakline-{name.lower()}"
version = "1.0.0"
description = "A leakline study"
license = {{ file = "LICENSE" }}
dependencies = ["flwr>={FLOWER}", "leakline[flower]"]

[tool.flwr.app]
publisher = "leakline"
fab-format-version = 1
flwr-version-target = "{FLOWER}"

[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"

[tool.flwr.app.config]
{lines}
"""
    files = {"pyproject.toml": project, "LICENSE": _LICENSE, "client_app.py": _CLIENT, "server_app.py": _SERVER}
    for file, content in files.items():
        (folder / file).write_text(content, encoding="utf-8")
    for place, source in travelling(code).items():
        if (folder / place).exists():
            raise StudyError(f"{place} is a name of the app's own", "model", "give that file another name")
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / place)
    return folder
