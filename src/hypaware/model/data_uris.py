"""Base64 out of what is stored: pictures and files that travel inside text, arguments and results.

A data URI keeps its kind and loses its load: `data:image/png;base64,<stripped>`. So do the load of a base64 source
(`{"type": "base64", "data": …}`) and other long base64 in the fields that clients use for it.
"""

from __future__ import annotations

import re
from typing import Any

STRIPPED = "<stripped>"
_URI = re.compile(r"""data:([^\s,;"'<>]{0,127}(?:;[^\s,;"'<>]{1,127}){0,4});base64,[A-Za-z0-9+/=_%-]+""")
_LOAD = re.compile(r"[A-Za-z0-9+/=_\s-]*")
# Shorter ones are names, hashes and test pictures.
_LONG = 512


def strip_text(text: str) -> str:
    return _URI.sub(rf"data:\1;base64,{STRIPPED}", text) if ";base64," in text else text


def may_hold_base64(json_text: str) -> bool:
    """A quick look at a value's JSON text: whether `strip_json` could find something in it."""
    return "base64" in json_text or "mimeType" in json_text


def strip_json(value: Any) -> Any:
    """The value without its base64, as a copy; the value must not be nested more deeply than JSON text may be."""
    if isinstance(value, str):
        return strip_text(value)
    if isinstance(value, list):
        return [strip_json(item) for item in value]
    if isinstance(value, dict):
        return {key: STRIPPED if _is_load(value, key, item) else strip_json(item) for key, item in value.items()}
    return value


def _is_load(holder: dict[str, Any], key: str, item: Any) -> bool:
    if not isinstance(item, str) or key not in ("data", "base64"):
        return False
    if key == "data" and holder.get("type") == "base64":
        return True
    if key == "data" and not ("mimeType" in holder or "media_type" in holder):
        return False
    return len(item) > _LONG and _LOAD.fullmatch(item) is not None
