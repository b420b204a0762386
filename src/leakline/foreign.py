"""Code that is not leakline's, named in a study as ``"module:name"``: found without being run, run only by consent.

A study file is data that a stranger may have written. A name in it is first *located* (nothing is imported), then
imported if whoever reads the study trusts that file, then held against the `Kind` of thing that is wanted; only what
is of that kind is ever called. Names in the standard library, or in an installed package that does not offer itself
to leakline by an entry point of the group ``leakline``, are refused before they are imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import site
import sys
import sysconfig
import traceback
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

_HERE = os.path.dirname(os.path.realpath(__file__)) + os.sep
GROUP = "leakline"
"""The group of entry points by which an installed package offers its modules to studies."""


@dataclass(frozen=True)
class Kind:
    """What a name must stand for: ``fits(thing, package)`` says whether it does, without calling it."""

    noun: str
    fits: Callable[[Any, str], bool]
    fix: str


def made_of(base: type, noun: str, fix: str) -> Kind:
    """A kind: a class derived from ``base``, or a function of that package that says it returns one."""

    def fits(thing: Any, package: str) -> bool:
        if inspect.isclass(thing):
            return issubclass(thing, base)
        return is_function_of(thing, package) and returns(thing, base)

    return Kind(noun, fits, fix)


def is_function_of(thing: Any, package: str) -> bool:
    """Whether this is a plain function that was written in that package, and not something it imported."""
    return inspect.isfunction(thing) and thing.__module__.partition(".")[0] == package


def returns(function: Callable[..., Any], base: type) -> bool:
    """Whether a function says that it returns such a thing."""
    try:
        kind = typing.get_type_hints(function).get("return")
    except Exception:  # an annotation may name anything
        return False
    return inspect.isclass(kind) and issubclass(kind, base)


@dataclass(frozen=True)
class Foreign:
    """A piece of code outside leakline: how it is named, and the file that would be run."""

    path: str
    file: Path
    package: str = ""
    """The installed package that offers it; "" for a file that lies beside a study or on the user's own path."""

    @property
    def digest(self) -> str:
        """Which file, where, with which content. What it imports in its turn is not looked at."""
        digest = hashlib.sha256(os.fsencode(self.file.resolve()) + b"\0")
        with contextlib.suppress(OSError):
            digest.update(self.file.read_bytes())
        return digest.hexdigest()

    def __str__(self) -> str:
        return f"{self.path} in {self.package or ascii(str(self.file))[1:-1]}"


class Unfit(ValueError):
    """A name that stands for nothing that may be used; whoever asked says where it was written."""

    def __init__(self, what: str, fix: str) -> None:
        self.what, self.fix = what, fix
        super().__init__(f"{what}; {fix}")


def locate(path: str, beside: Iterable[Path] = ()) -> Foreign | None:
    """Where the code that a name stands for lies, without importing anything; None for leakline's own.

    ``beside`` are folders that are looked at after Python's own path.
    """
    module, _, name = path.partition(":")
    parts = module.split(".")
    if not all(part.isidentifier() for part in [*parts, name]):
        raise Unfit(f"{path[:80]!r} is not an import path", fix='write "package.module:name"')
    if parts[0] == "leakline":
        return None
    spec = _top(parts[0], beside)
    package = "" if spec is None else _offered(parts[0], spec)
    for depth in range(2, len(parts) + 1):
        inside = spec.submodule_search_locations if spec is not None else None
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:depth]), inside) if inside else None
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        raise Unfit(
            f"{path!r} cannot be imported: there is no module {module!r}",
            fix="put its file beside the study, or install the package",
        )
    return Foreign(path, Path(spec.origin), package)


def _top(name: str, beside: Iterable[Path]) -> importlib.machinery.ModuleSpec | None:
    with contextlib.suppress(ValueError, ImportError):  # `__main__` has none
        if (spec := importlib.util.find_spec(name)) is not None:
            return spec
    return importlib.machinery.PathFinder.find_spec(name, [str(folder) for folder in beside])


def _offered(name: str, spec: importlib.machinery.ModuleSpec) -> str:
    """The installed package that offers a module to studies, "" for the user's own; others are refused."""
    places = [spec.origin] if spec.origin not in (None, "namespace") else list(spec.submodule_search_locations or ())
    if name not in sys.stdlib_module_names and all(place and _is_users(place) for place in places):
        return ""
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP):
        if entry.module.partition(".")[0] == name:
            return entry.dist.name if entry.dist is not None else name
    raise Unfit(
        f"{name!r} belongs to Python or to an installed package that offers nothing to leakline",
        fix=f"write a function of your own in a file beside the study (a package of yours: an entry point {GROUP!r})",
    )


def _is_users(place: str) -> bool:
    """Whether a file belongs to the user, and not to Python or its installed packages."""
    if not os.path.exists(place):  # "built-in", "frozen"
        return False
    real = os.path.realpath(place)
    return not any(real.startswith(root + os.sep) for root in _installed())


@lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    roots |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(sorted({os.path.realpath(root) for root in roots}))


def fetch(path: str, kind: Kind, beside: Iterable[Path] = ()) -> Any:
    """What a name stands for, imported and of the right kind. It has not been called."""
    foreign = locate(path, beside)
    module_name, _, name = path.partition(":")
    if foreign is not None:
        _reach(foreign, module_name)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        text = ascii(str(error)[:160])[1:-1]
        raise Unfit(
            f"{path!r} cannot be imported: {type(error).__name__}: {text}{own_line(error)}",
            fix=f"try: python -c 'import {module_name}'",
        ) from error
    package = module_name.partition(".")[0]
    thing = getattr(module, name, None)
    if thing is None or not kind.fits(thing, package):
        names = [n for n, value in vars(module).items() if not n.startswith("_") and kind.fits(value, package)]
        near = get_close_matches(name, names, n=1, cutoff=0.5) or names[:1]
        what = f"{path!r} is not {kind.noun}" if thing is not None else f"{module_name!r} has no {name!r}"
        raise Unfit(what, fix=f'did you mean "{module_name}:{near[0]}"?' if near else kind.fix)
    return thing


def own_line(error: BaseException) -> str:
    """Where in the user's own code an error came from: the innermost line that is not Python's or a package's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if _is_users(f.filename) and not os.path.realpath(f.filename).startswith(_HERE)]
    if not own:
        return ""
    last = own[-1]
    code = "".join(c if c.isprintable() else "?" for c in (last.line or "").strip())[:100]
    return f" ({os.path.basename(last.filename)}, line {last.lineno}{f': {code}' if code else ''})"


def _reach(foreign: Foreign, module: str) -> None:
    """Make a module importable whose file lies beside the study: behind all others, so that it hides none of them."""
    depth = len(module.split(".")) - (foreign.file.name != "__init__.py")
    folder = str(foreign.file.resolve().parents[depth])
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        sys.path.append(folder)
        importlib.invalidate_caches()


def travelling(code: Sequence[Foreign]) -> dict[str, Path]:
    """The user's own files behind some names, by where they stand beside the study."""
    places: dict[str, Path] = {}
    for foreign in code:
        if foreign.package:
            continue
        modules = foreign.path.partition(":")[0].split(".")
        if len(modules) == 1 and foreign.file.name != "__init__.py":
            places[foreign.file.name] = foreign.file
            continue
        top = foreign.file.resolve().parents[len(modules) - (foreign.file.name != "__init__.py") - 1]
        places |= {f"{modules[0]}/{path.relative_to(top)}": path for path in sorted(top.rglob("*.py"))}
    return places
