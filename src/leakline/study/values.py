"""What a key may be given, from its type: as a JSON schema for editors, in words for people, and an example."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pydantic
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError

Keys = Mapping[str, tuple[Any, Any]]
"""What a table may hold: by key its type and its default (`...` where it must be given)."""

_BOUNDS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}"}
_TYPES = {
    "integer": "a whole number", "number": "a number", "string": "text", "boolean": "true or false",
    "object": "a table", "null": "left out",
}  # fmt: skip
_SAMPLES = {"number": "1.0", "integer": "1", "string": '"..."', "boolean": "true", "object": "{ ... }"}


def described(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type; empty, where it is no JSON."""
    is_model = isinstance(hint, type) and hasattr(hint, "__dataclass_fields__")
    config = None if is_model else pydantic.ConfigDict(arbitrary_types_allowed=True)
    try:
        return pydantic.TypeAdapter(hint, config=config).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, pydantic.PydanticUserError):
        return {}


def kind(found: Mapping[str, Any], code: str = "`") -> str:
    """What a key may be, in words, from its JSON schema; ``code`` stands around values."""
    if "enum" in found:
        return ", ".join(f"{code}{json.dumps(value)}{code}" for value in found["enum"])
    if "const" in found:
        return f"{code}{json.dumps(found['const'])}{code}"
    if "anyOf" in found:
        return " or ".join(dict.fromkeys(kind(one, code) for one in found["anyOf"]))
    if found.get("type") == "array":
        inner = found.get("items")
        return f"a list: {kind(inner, code)}" if isinstance(inner, dict) and inner else "a list"
    bounds = " ".join(text.format(f"{found[key]:,g}") for key, text in _BOUNDS.items() if key in found)
    return " ".join(part for part in (_TYPES.get(str(found.get("type")), "anything"), bounds) if part)


def sample(found: Mapping[str, Any]) -> str:
    """A value of such a kind, as TOML has it; dots for what only the user knows."""
    if "enum" in found or "const" in found:
        return json.dumps(found.get("const", (found.get("enum") or [""])[0]))
    if "anyOf" in found:
        return sample(found["anyOf"][0])
    if found.get("type") == "array":
        inner = found.get("items")
        return f"[{sample(inner)}, ...]" if isinstance(inner, dict) and inner else "[...]"
    return _SAMPLES.get(str(found.get("type")), "...")
