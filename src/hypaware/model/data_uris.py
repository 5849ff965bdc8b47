"""Remove base64 data from stored values: images and files embedded in text, arguments and results.

A data URI keeps its media type and loses its payload: `data:image/png;base64,<stripped>`. The payload of a base64
source (`{"type": "base64", "data": …}`) and other long base64 in the fields that clients use for it is removed in the
same way.
"""

from __future__ import annotations

import re
from typing import Any

STRIPPED = "<stripped>"
_URI = re.compile(r"""data:([^\s,;"'<>]{0,127}(?:;[^\s,;"'<>]{1,127}){0,4});base64,[A-Za-z0-9+/=_%-]+""")
_LOAD = re.compile(r"[A-Za-z0-9+/=_\s-]*")
# Shorter values are names, hashes and test images.
_LONG = 512


def strip_text(text: str) -> str:
    return _URI.sub(rf"data:\1;base64,{STRIPPED}", text) if ";base64," in text else text


def may_hold_base64(json_text: str) -> bool:
    """Return whether `strip_json` could find anything, from a quick look at the value's JSON text."""
    return "base64" in json_text or "mimeType" in json_text


def strip_json(value: Any) -> Any:
    """Return a copy of the value without base64 data. Its nesting must be within `canonical.MAX_DEPTH`."""
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
