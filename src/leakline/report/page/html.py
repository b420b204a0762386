"""What every page has: templates that escape, a policy that allows nothing but the page's own, one file."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from leakline.results.table import is_number, shown, sort_key
from leakline.study.files import write_atomically
from leakline.text import scrub, tidy

if TYPE_CHECKING:
    from jinja2 import Template


def template(name: str) -> Template:
    """A template in which every text is escaped, and cleaned by the filters that it names."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("leakline.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["clean"] = tidy
    environment.filters["shown"] = lambda cell: scrub(shown(cell))
    environment.filters["sort_key"] = lambda cell: scrub(sort_key(cell))
    environment.tests["numeric"] = is_number
    return environment.get_template(name)


def asset(name: str) -> str:
    """A script or style sheet of this package."""
    return (files("leakline.report") / "templates" / name).read_text(encoding="utf-8").strip()


def policy(scripts: list[str], styles: list[str]) -> str:
    """A content security policy by the hashes of what stands in the page."""
    allowed = {"script-src": scripts, "style-src": styles}
    own = "; ".join(f"{kind} {' '.join(map(_hash, texts))}" for kind, texts in allowed.items() if texts)
    return f"default-src 'none'; {own}; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write_page(page: str, target: Path) -> Path:
    """Write a page, and say where it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, page.encode("utf-8", "replace"))
    return target
