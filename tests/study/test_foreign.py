"""Names in a study file: nothing is called, and nothing foreign imported, before its kind and its reader's consent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leakline.errors import StudyError
from leakline.foreign import Unfit, fetch, locate
from leakline.models import FACTORY
from leakline.study import kinds
from leakline.study.consent import Untrusted, remember, remembered
from leakline.study.spec import load, parse

STUDY = """\
name = "named"
model = {model}
attacks = {attacks}
[data]
use = {data}
{settings}
clients = 3
partition = {partition}
[strategies]
s = {strategy}
[defences]
d = {defence}
"""
GOOD = {
    "model": '"mlp"', "attacks": "[]", "data": '"digits"', "settings": "limit = 60", "partition": '"even"',
    "strategy": '"fedavg"', "defence": "[]",
}  # fmt: skip


def study(**changes: str) -> str:
    return STUDY.format(**(GOOD | changes))


HOSTILE = {
    "rmtree as an attack": {"attacks": '[{{ use = "shutil:rmtree", path = "{victim}" }}]'},
    "mkdir as an attack": {"attacks": '[{{ use = "os:mkdir", path = "{made}" }}]'},
    "mkdir as a strategy": {"strategy": '{{ use = "os:mkdir", path = "{made}" }}'},
    "mkdir as a defence": {"defence": '[{{ use = "os:mkdir", path = "{made}" }}]'},
    "makedirs as data": {"data": '"os:makedirs"', "settings": 'name = "{made}"'},
    "makedirs as a partition": {"partition": '{{ use = "os:makedirs", name = "{made}" }}'},
    "system as a model": {"model": '{{ use = "os:system", command = "mkdir {made}" }}'},
    "run as a model": {"model": '{{ use = "subprocess:run", args = ["mkdir", "{made}"] }}'},
    "rmtree as a model": {"model": '{{ use = "shutil:rmtree", path = "{victim}" }}'},
    "leakline's own writer as a model": {
        "model": '{{ use = "leakline.study.store:write_atomically", path = "{made}" }}'
    },
    "a module with a side effect": {"model": '"antigravity:fly"'},
    "an installed package": {"model": '"torch.hub:load"'},
    "the program itself": {"model": '"__main__:main"'},
    "a class of another kind": {"defence": '["pathlib:Path"]'},
    "a path": {"model": '"../evil:build"'},
    "a dotted name": {"model": '"os:path.join"'},
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("trust", [False, True])
def test_nothing_that_is_not_of_the_kind_is_called(kind, trust, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    places = {"victim": victim.as_posix(), "made": (tmp_path / "made").as_posix()}
    before = set(sys.modules)
    with pytest.raises(StudyError, match=r"leakline|import path|no module|is not"):
        parse(study(**{key: text.format(**places) for key, text in HOSTILE[kind].items()}), trust=trust)
    assert victim.is_dir()
    assert not (tmp_path / "made").exists()
    assert not {"antigravity", "torch.hub"} & (set(sys.modules) - before)


@pytest.fixture
def beside(tmp_path, monkeypatch) -> Path:
    """A folder with a study and a file of somebody's that leaves a trace when it is imported, and more when called."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "their_net.py").write_text(
        "from os import system\n"
        "from pathlib import Path\n"
        "from torch import nn\n"
        "Path(__file__).with_name('trace').touch()\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
        "number = 3\n"
    )
    (folder / "study.toml").write_text(study(model='"their_net:build"'))
    yield folder
    sys.modules.pop("their_net", None)


def test_code_beside_a_study_is_listed_and_not_imported_until_it_is_trusted(beside):
    with pytest.raises(Untrusted, match=r"not leakline's.*their_net:build in .*their_net\.py") as told:
        load(str(beside / "study.toml"))
    assert not (beside / "trace").exists()
    assert [code.file for code in told.value.codes] == [(beside / "their_net.py").resolve()]
    loaded = load(str(beside / "study.toml"), trust=True)
    assert (beside / "trace").exists()
    assert loaded.foreign == told.value.codes
    assert loaded.cells[0].federation().layout.size == 64 * 10 + 10


def test_what_was_agreed_to_is_remembered_by_file_and_content(beside):
    with pytest.raises(Untrusted) as told:
        load(str(beside / "study.toml"))
    remember(told.value.codes)
    assert load(str(beside / "study.toml")).foreign
    sys.modules.pop("their_net")
    with open(beside / "their_net.py", "a") as file:
        file.write("# another\n")
    with pytest.raises(Untrusted):
        load(str(beside / "study.toml"))
    assert len(remembered()) == 1


def test_a_memory_that_is_a_link_is_not_written_through(beside, tmp_path):
    (tmp_path / "state/leakline").mkdir(parents=True)
    (tmp_path / "state/leakline/trusted").symlink_to(tmp_path / "elsewhere")
    remember([located := locate("their_net:build", [beside])])
    assert located is not None
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["system", "number", "nothing", "nn", "Path"])
def test_of_a_trusted_file_only_its_own_functions_build_models(beside, name):
    with pytest.raises(Unfit, match=r'did you mean "their_net:build"'):
        fetch(f"their_net:{name}", FACTORY, [beside])


def test_the_command_line_wants_consent(beside, leakline, monkeypatch):
    monkeypatch.chdir(beside)
    for verb in ("check", "run", "audit"):
        code, _, err = leakline(verb, "study.toml")
        assert code == 2
        assert "their_net:build" in err
        assert "--trust" in err
    assert not (beside / "trace").exists()
    code, out, _ = leakline("check", "study.toml", "--trust")
    assert code == 0
    assert "code that is not leakline's: their_net:build" in out
    assert leakline("check", "study.toml")[0] == 0  # it was agreed to


def test_code_of_ones_own_that_goes_wrong_is_a_mistake_with_a_place(tmp_path):
    (tmp_path / "goes_wrong.py").write_text("raise SystemExit('no')\n")
    (tmp_path / "no_strategy.py").write_text(
        "from dataclasses import dataclass\nfrom leakline import Defence, Strategy\n"
        "def untold():\n    return 3\n"
        "def told() -> Strategy:\n    raise KeyError('x')\n"
        "@dataclass(frozen=True)\nclass Odd(Defence):\n    size: int\n"
        "    def __post_init__(self):\n        raise RuntimeError('too odd')\n"
    )
    for change, words in {
        "goes_wrong:build": "study.toml:2 model.use - .*SystemExit: no",
        "missing_altogether:build": "no module 'missing_altogether'",
    }.items():
        with pytest.raises(StudyError, match=words):
            parse(study(model=f'"{change}"'), beside=(tmp_path,), trust=True)
    with pytest.raises(StudyError, match='is not a strategy; did you mean "no_strategy:told"'):
        parse(study(strategy='"no_strategy:untold"'), beside=(tmp_path,), trust=True)
    with pytest.raises(StudyError, match=r"strategies\.s - no_strategy:told cannot be made: KeyError"):
        parse(study(strategy='"no_strategy:told"'), beside=(tmp_path,), trust=True)
    with pytest.raises(StudyError, match=r"RuntimeError: too odd"):
        parse(study(defence='[{ use = "no_strategy:Odd", size = 1 }]'), beside=(tmp_path,), trust=True)


def test_a_file_that_nobody_named_is_not_imported(tmp_path):
    """An optional package that is not installed must not be taken from a stranger's folder."""
    (tmp_path / "study.toml").write_text(study())
    (tmp_path / "cupy.py").write_text("raise SystemExit(77)\n")
    code = "import leakline.cli, sys; sys.argv = ['leakline', 'check', 'study.toml'];\ntry: leakline.cli.main()\n"
    code += "except SystemExit as e: assert not e.code, e.code\n"
    code += "import importlib.util as u; assert u.find_spec('cupy') is None"
    isolated = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert isolated.returncode == 0, isolated.stderr


def test_leaklines_own_names_need_no_consent():
    assert locate("leakline.defences:GlobalDP") is None
    assert fetch("leakline:GlobalDP", kinds.DEFENCE).__name__ == "GlobalDP"
    assert fetch("leakline.strategies:fedavg", kinds.STRATEGY)
    with pytest.raises(Unfit, match="is not a defence"):
        fetch("leakline:Weights", kinds.DEFENCE)
