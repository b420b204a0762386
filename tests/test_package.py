"""The package as a whole: imports point one way, the public names, the pinned torch."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import leakline

HERE = Path(__file__).parent.parent
ROOT = HERE / "src" / "leakline"

LAYERS = (
    {"errors", "foreign", "names", "randomness", "settings", "weights", "readings", "measures", "privacy"},
    {"text", "data", "models", "utility", "messages", "mechanisms", "leakage"},
    {"bench", "guard", "strategies"},
    {"defences"},
    {"stack"},
    {"federation"},
    {"runtimes", "views", "cards"},
    {"attacks"},
    {"study", "testing"},
    {"recordings", "results"},
    {"flower", "decide"},
    {"report"},
    {"papers"},
    {"cli"},
)
"""The architecture. A part of the package (a folder or file right below it) imports itself and parts of earlier layers,
wherever the import stands: in a function or for type checkers, too. Parts of one layer do not know each other. The top,
`leakline` itself, stands outside: it gives all public names when asked, and others take `__version__` alone from it."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("leakline.federation", "runtimes"): "`federate(federation)` without a transport runs its clients in this process",
}
"""Imports that the layers forbid, by module and the part it imports, each with its reason."""


def modules() -> dict[str, Path]:
    named = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        if parts == ("leakline", "__main__"):  # `python -m leakline`: the command line, from outside
            continue
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


MODULES = modules()
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def at_import(nodes: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when a module is imported: not those in functions or for type checkers."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            yield from at_import(node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from at_import(node.body + [s for h in node.handlers for s in h.body] + node.orelse + node.finalbody)
        elif isinstance(node, ast.With | ast.ClassDef):
            yield from at_import(node.body)


def anywhere(name: str) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import statement of a module, wherever it stands."""
    return (node for node in ast.walk(TREES[name]) if isinstance(node, ast.Import | ast.ImportFrom))


def imports(name: str, nodes: Iterable[ast.Import | ast.ImportFrom]) -> set[str]:
    """What of the package these statements of a module import: modules where they are, else what holds the name."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    targets = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
            continue
        base = node.module or ""
        if node.level:
            base = importlib.util.resolve_name("." * node.level + base, package)
        targets |= {f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names}
    return {target for target in targets if target.split(".")[0] == "leakline"}


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def layer(name: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part(name) in parts)


def forbidden() -> Iterator[tuple[str, str]]:
    """Imports against the layers, as (module, target)."""
    for name in MODULES:
        for target in imports(name, anywhere(name)) if name != "leakline" else ():
            if target != "leakline" and part(target) != part(name) and layer(target) >= layer(name):
                yield name, target


def test_the_layers_hold_every_part_once_and_are_few():
    placed = sorted(name for parts in LAYERS for name in parts)
    assert len(placed) == len(set(placed))
    assert {part(name) for name in MODULES} - {"leakline"} <= set(placed)
    assert len(LAYERS) <= 14


def test_imports_point_one_way():
    against = {(name, target) for name, target in forbidden() if (name, part(target)) not in EXCEPTIONS}
    assert not against


def test_exceptions_are_few_used_and_have_a_reason():
    assert len(EXCEPTIONS) <= 6
    assert set(EXCEPTIONS) <= {(name, part(target)) for name, target in forbidden()}
    assert all(EXCEPTIONS.values())


def test_only_the_version_is_taken_from_the_top():
    for name in MODULES:
        for node in anywhere(name):
            if isinstance(node, ast.ImportFrom) and node.module == "leakline" and name != "leakline":
                assert all(a.name == "__version__" or f"leakline.{a.name}" in MODULES for a in node.names), name


def test_no_module_imports_itself_by_a_detour():
    graph = {n: {t for t in imports(n, at_import(TREES[n].body)) if t in MODULES and t != n} for n in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


GENERAL = {"MENU", "Defence", "Law", "Loss", "Promises", "Stage", "Terms", "harm", "hooks_of"}
"""What everybody may know of defences: their base, their facts, how they meet and the menu."""


def test_nobody_outside_the_defences_and_the_papers_knows_a_single_defence():
    """Imports inside functions and for type checkers count as well."""
    for name, path in MODULES.items():
        if part(name) in ("leakline", "defences", "papers"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                known = {alias.name for alias in node.names if alias.name.startswith("leakline.defences.")}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leakline.defences"):
                inside = node.module != "leakline.defences"
                known = {alias.name for alias in node.names if inside or alias.name not in GENERAL}
            else:
                continue
            assert not known, f"{name} knows {', '.join(sorted(known))}: ask a fact of `Defence` or `Stack` instead"


def test_only_the_stack_and_the_defences_walk_through_a_stack():
    """A loop, a comprehension or an index over ``.defences``: what it does belongs into `Stack`."""
    for name, path in MODULES.items():
        if part(name) in ("defences", "stack", "testing"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        walked = [n.iter for n in ast.walk(tree) if isinstance(n, ast.For | ast.comprehension)]
        walked += [n.value for n in ast.walk(tree) if isinstance(n, ast.Subscript)]
        for value in walked:
            text = ast.unparse(value)
            assert not re.search(r"(federation|fed|world|outside|inside|stack)\.defences\b", text), f"{name}: {text}"


HEAVY = ("torch", "numpy", "scipy", "sklearn", "pandas", "pydantic", "typer")


def loaded_after(statement: str) -> set[str]:
    code = f"import json, sys; {statement}; print(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_the_package_imports_nothing_heavy():
    assert not loaded_after("import leakline") & set(HEAVY)


def test_importing_the_command_line_imports_no_torch():
    assert not loaded_after("import leakline.cli") & {"torch", "numpy", "scipy", "sklearn", "pandas", "pydantic"}


def test_the_slow_packages_are_imported_only_where_they_are_used():
    loaded = loaded_after("import leakline.federation, leakline.runtimes.local, leakline.study, leakline.attacks")
    assert "torch" in loaded
    assert not loaded & {
        "sklearn",
        "monai",
        "matplotlib",
        "dp_accounting",
        "PIL",
        "pandas",
        "flwr",
        "plotly",
        "pydicom",
        "nibabel",
    }


def test_the_public_names_are_exactly_those_exported():
    visible = {name for name in dir(leakline) if not name.startswith("_")}
    assert visible == set(leakline.__all__)
    assert len(leakline.__all__) == len(set(leakline.__all__))
    typed = {
        alias.asname or alias.name
        for node in ast.parse(inspect.getsource(leakline)).body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert typed == set(leakline.__all__)  # what a type checker sees is what there is


SUBPACKAGES = {name for name in leakline.__all__ if (ROOT / name / "__init__.py").is_file()}


@pytest.mark.parametrize("name", leakline.__all__)
def test_every_public_name_can_be_had_and_is_documented(name):
    thing = getattr(leakline, name)
    assert inspect.getdoc(thing)
    if name in SUBPACKAGES:
        assert inspect.ismodule(thing)
    else:
        assert callable(thing)


def test_what_a_type_checker_resolves_is_what_python_gives():
    block = next(
        node
        for node in ast.parse(inspect.getsource(leakline)).body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    )
    space: dict[str, object] = {}
    exec(compile(ast.Module(block.body, []), "types", "exec"), space)
    for name in leakline.__all__:
        assert space[name] is getattr(leakline, name), name


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="nonsense"):
        leakline.nonsense  # noqa: B018


def pinned() -> dict[str, str]:
    lines = (HERE / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(match.groups() for text in lines if (match := re.match(r"([A-Za-z0-9._-]+)==([^\s;#]+)", text)))


def test_the_installed_torch_is_the_pinned_one_and_nothing_brought_torchvision():
    wanted = pinned()["torch"]
    installed = importlib.metadata.version("torch")
    assert installed.split("+")[0] == wanted.split("+")[0]
    import torch

    assert torch.version.cuda is None or not sys.platform.startswith("linux")
    assert importlib.util.find_spec("torchvision") is None
    assert "torchvision" not in pinned()


def test_nothing_is_ever_unpickled():
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) (pickle|cloudpickle|joblib|shelve|marshal|dill)\b", text, re.M), name
        assert "torch.load(" not in text, name
        assert "allow_pickle=True" not in text, name
        for call in re.findall(r"np\.load\([^)]*\)", text):
            assert "allow_pickle=False" in call, name


@pytest.mark.parametrize("path", sorted((HERE / "benchmarks").rglob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_takes_names_that_exist(path):
    """Benchmarks are run by hand, on quiet machines: a name that moved would be found out too late."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "leakline":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Flower's command line has some
                module = importlib.import_module(str(node.module))
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert [name for name in missing if not importlib.util.find_spec(f"{node.module}.{name}")] == []
