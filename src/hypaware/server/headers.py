"""The headers of a batch, validated before its body is read.

Names from outside (ids, sources, hosts) are stored as values in the ledger, never used in a path, and limited in
length. `X-Hyp-Source`, `-Gateway`, `-Incarnation` and `-Host` are percent-encoded UTF-8: a header cannot carry every
name unencoded, and two sources must never become one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from hypaware.model.storable import is_encodable
from hypaware.server.problem import Problem, bad_request
from hypaware.state.ledger import Delivery, Range

_MAX_NAME = 200
_MAX_SOURCE = 500
_RANGE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_SEQ = re.compile(r"[0-9]{1,19}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_MAX_SEQ = 2**63 - 1
_CONTENT_TYPE = "application/x-ndjson"
ENCODINGS = ("gzip", "zstd")


@dataclass(frozen=True)
class BatchHeaders:
    id: str
    incarnation: str
    delivery: Delivery | None
    acked_to: int | None
    content_sha: str | None
    encoding: str | None
    host: str | None


def read(headers: Mapping[str, str]) -> BatchHeaders:
    content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if content_type != _CONTENT_TYPE:
        raise bad_request("bad_content_type", f"Content-Type must be {_CONTENT_TYPE}")
    if not headers.get("X-Hyp-Batch-Id"):
        raise bad_request("bad_batch_id", "X-Hyp-Batch-Id is missing")
    sha = headers.get("X-Hyp-Content-Sha256")
    if sha is not None and not _SHA256.fullmatch(sha):
        raise bad_request("bad_header", "X-Hyp-Content-Sha256 must be a sha256 in hex")
    return BatchHeaders(
        id=checked("X-Hyp-Batch-Id", headers["X-Hyp-Batch-Id"], kind="bad_batch_id"),
        incarnation=incarnation(headers),
        delivery=_delivery(headers),
        acked_to=_acked_to(headers),
        content_sha=sha.lower() if sha else None,
        encoding=_encoding(headers.get("Content-Encoding", "")),
        host=host(headers),
    )


def checked(what: str, value: str, *, kind: str = "bad_header") -> str:
    """Return the name if it is printable and short enough. Printable text can always be encoded as UTF-8."""
    if not value or len(value) > _MAX_NAME or not value.isprintable():
        raise bad_request(kind, f"{what} must be printable text of 1 to {_MAX_NAME} characters")
    return value


def name(headers: Mapping[str, str], header: str) -> str | None:
    given = headers.get(header)
    return None if given is None else checked(header, _decoded(header, given))


def source(value: str) -> str:
    """Return the source if a database can store it."""
    if not 0 < len(value) <= _MAX_SOURCE or "\0" in value or not is_encodable(value):
        raise bad_request("bad_source", f"a source must be text of 1 to {_MAX_SOURCE} characters without NUL")
    return value


def incarnation(headers: Mapping[str, str]) -> str:
    """Return the incarnation, or an empty string if the client sends none."""
    return name(headers, "X-Hyp-Incarnation") or ""


def host(headers: Mapping[str, str]) -> str | None:
    return name(headers, "X-Hyp-Host")


def own_gateway(headers: Mapping[str, str], gateway_id: str | None) -> None:
    """Raise Problem 403 if the client names another gateway than the one that its token was signed for."""
    named = name(headers, "X-Hyp-Gateway")
    if named is not None and gateway_id is not None and named != gateway_id:
        raise Problem(403, "gateway_mismatch")


def _delivery(headers: Mapping[str, str]) -> Delivery | None:
    given = headers.get("X-Hyp-Seq-Range")
    if given is None:
        return None
    match = _RANGE.fullmatch(given)
    after, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not after < last <= _MAX_SEQ:
        raise bad_request("bad_header", "X-Hyp-Seq-Range must be <after>-<last> with <after> below <last>")
    given_source = headers.get("X-Hyp-Source")
    if given_source is None or not incarnation(headers):
        raise bad_request("bad_header", "X-Hyp-Seq-Range requires X-Hyp-Source and X-Hyp-Incarnation")
    return Delivery(source(_decoded("X-Hyp-Source", given_source)), Range(after, last))


def _acked_to(headers: Mapping[str, str]) -> int | None:
    given = headers.get("X-Hyp-Acked-To")
    if given is None:
        return None
    if not _SEQ.fullmatch(given) or int(given) > _MAX_SEQ:
        raise bad_request("bad_header", "X-Hyp-Acked-To must be a sequence")
    return int(given)


def _encoding(given: str) -> str | None:
    encoding = given.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in ENCODINGS:
        raise bad_request("bad_encoding", f"Content-Encoding must be identity or one of {', '.join(ENCODINGS)}")
    return encoding


def _decoded(header: str, given: str) -> str:
    try:
        return unquote(given, errors="strict")
    except UnicodeDecodeError:
        raise bad_request("bad_header", f"{header} is not percent-encoded UTF-8") from None
