"""Images in recorded text. They are data URIs, and only formats that cannot contain scripts are shown."""

from __future__ import annotations

import base64
import binascii
import re

_URI = re.compile(r"data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/]+={0,2})")
_STARTS = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "gif": b"GIF8", "webp": b"RIFF"}
_MAX_CHARACTERS = 8 << 20


def image_source(text: str) -> str | None:
    """Return the text if it is a data URI of an image that can be shown, else None.

    Recorders keep the media type of an image and not its content, so most images cannot be shown.
    """
    if not text.startswith("data:image/") or len(text) > _MAX_CHARACTERS:
        return None
    found = _URI.fullmatch(text)
    if found is None:
        return None
    try:
        beginning = base64.b64decode(found[2][:32], validate=True)
    except binascii.Error:
        return None
    return text if beginning.startswith(_STARTS[found[1]]) else None
