"""Text on its way out: names and messages of a store are data that anybody may have written.

Every output cleans with `clean` first and then escapes for its own language; `scrub` also takes away where on
somebody's machine a file was.
"""

from __future__ import annotations

import json
import math
import re

from leakline.names import printable

LIMIT = 4000
_QUOTED_PATH = re.compile(r"""(["'])(?:file://)?(?:~|[A-Za-z]:)?[/\\][^"'\n]*\1""")
_BARE_PATH = re.compile(
    r"""(?:file://|(?<![\w.:/\\~-]))(?:~|[A-Za-z]:)?[/\\]{1,3}(?:[^\s/\\'"<>|,;]+[/\\])+[^\s/\\'"<>|,;:)]*"""
)
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "'": r"\textquotesingle{}", "`": r"\textasciigrave{}",
    "-": "{-}", "–": r"\textendash{}", "±": r"\ensuremath{\pm}", "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip


def clean(value: object) -> str:
    """One printable line: no control, escape or direction characters; what is nothing is empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | dict | tuple):
        value = json.dumps(value, default=str)
    return printable(str(value).replace("\t", " ").replace("\r\n", " ").replace("\n", " "), LIMIT)


def scrub(text: object) -> str:
    """Text without directories: of each absolute path only the last part stays."""

    def quoted(match: re.Match[str]) -> str:
        return match[1] + _last(match[0][1:-1]) + match[1]

    lines = (_BARE_PATH.sub(lambda m: _last(m[0]), _QUOTED_PATH.sub(quoted, line)) for line in str(text).splitlines())
    return "\n".join(lines)


def tidy(value: object) -> str:
    """Text for a page that goes to other people: clean, and without directories."""
    return scrub(clean(value))


def _last(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return parts[-1] if len(parts) > 1 else ".../"


def latex(value: object) -> str:
    r"""Text that LaTeX prints as it is: no command, group, alignment or ligature survives.

    Characters that a plain pdfLaTeX cannot print become "?", so that a table always compiles. Brackets and stars are
    braced because ``\\`` and ``\midrule`` before them would take them as arguments.
    """
    return "".join(_latex_character(c) for c in clean(value))


def _latex_character(c: str) -> str:
    if c in _LATEX:
        return _LATEX[c]
    return c if c.isascii() or "\u00c0" <= c <= "\u017f" and c not in "\u0149\u017f" else "?"


def markdown(value: object) -> str:
    """Text that Markdown prints as it is, also inside a table of pipes, and that holds no HTML and no link."""
    text = re.sub(r"([\\`*_{}\[\]()#+!|~$^=-])", r"\\\1", clean(value))
    # A dash or dot between digits starts nothing in Markdown, and numbers should read as numbers.
    text = re.sub(r"(?<=\d)\\-(?=\d)|(?<=e)\\-(?=\d)|^\\-(?=\d)", "-", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("://", ":&#47;&#47;").replace("www.", "www&#46;").replace("@", "&#64;")


def csv_cell(value: object) -> str:
    """Text that a spreadsheet takes as text: what could be a formula gets a quote in front."""
    text = clean(value)
    # Leading blanks are dropped by some sheets before they look for a formula.
    risky = text.lstrip()[:1] in ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20") and text.strip() != ""
    return f"'{text}" if risky and not _plain_number(text) or str(value)[:1] in ("\t", "\r", "\n") else text


def _plain_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text) is not None


def number(value: float | None, digits: int | None = None) -> str:
    """A number as people write it, with so many decimals or four figures; what is not known is a dash."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if digits is None:
        whole = float(value).is_integer() and abs(value) < 1e15
        return f"{value:,.0f}" if whole or abs(value) >= 1000 else f"{value:.4g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 10**-digits else f"{value:.1g}"
