"""Error responses, the headers of a batch, which are validated before its body is read, and the certificate of HTTPS.

An error is an HTTP status, `{"error": "<kind>", …}` and, if a retry can help, Retry-After. A sender must not repeat a
request unchanged after 400, 413 and 422; after 429 and 503 it repeats it after Retry-After seconds.

Names from outside (ids, sources, hosts) are stored as values in the ledger, never used in a path, and limited in
length. `X-Hyp-Source`, `-Gateway`, `-Incarnation` and `-Host` are percent-encoded UTF-8: a header cannot carry every
name unencoded, and two sources must never become one.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
from aiohttp import web

from hypaware.errors import UsageError
from hypaware.model.sanitize import is_encodable
from hypaware.state.ledger import SequenceRange, StreamRange

RETRY_SECONDS = 5
_MAX_NAME = 200
_MAX_SOURCE = 500
_RANGE = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")
_SEQ = re.compile(r"[0-9]{1,19}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_MAX_SEQ = 2**63 - 1
_CONTENT_TYPE = "application/x-ndjson"
ENCODINGS = ("gzip", "zstd")


class HttpProblem(Exception):
    def __init__(self, status: int, kind: str, *, retry_after: float | None = None, **detail: Any) -> None:
        super().__init__(f"{status} {kind}")
        self.status = status
        self.kind = kind
        self.detail = detail
        self.retry_after = retry_after

    def response(self) -> web.Response:
        headers = {} if self.retry_after is None else {"Retry-After": str(max(1, round(self.retry_after)))}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response({"error": self.kind, **self.detail}, self.status, headers)


def bad_request(kind: str, reason: str) -> HttpProblem:
    return HttpProblem(400, kind, reason=reason)


def unavailable(kind: str, retry_after: float = RETRY_SECONDS) -> HttpProblem:
    """Return a 503: the server has a problem, nothing was stored, and the same request may succeed later."""
    return HttpProblem(503, kind, retry_after=retry_after)


def too_large(limit: int) -> HttpProblem:
    return HttpProblem(413, "body_too_large", limit=limit)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json", headers=headers)


@dataclass(frozen=True)
class BatchHeaders:
    id: str
    incarnation: str
    delivery: StreamRange | None
    acked_to: int | None
    content_sha: str | None
    encoding: str | None
    host: str | None


def read_batch_headers(headers: Mapping[str, str]) -> BatchHeaders:
    content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if content_type != _CONTENT_TYPE:
        raise bad_request("bad_content_type", f"Content-Type must be {_CONTENT_TYPE}")
    if not headers.get("X-Hyp-Batch-Id"):
        raise bad_request("bad_batch_id", "X-Hyp-Batch-Id is missing")
    sha = headers.get("X-Hyp-Content-Sha256")
    if sha is not None and not _SHA256.fullmatch(sha):
        raise bad_request("bad_header", "X-Hyp-Content-Sha256 must be a sha256 in hex")
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", *ENCODINGS):
        raise bad_request("bad_encoding", f"Content-Encoding must be identity or one of {', '.join(ENCODINGS)}")
    acked_to = headers.get("X-Hyp-Acked-To")
    if acked_to is not None and (not _SEQ.fullmatch(acked_to) or int(acked_to) > _MAX_SEQ):
        raise bad_request("bad_header", "X-Hyp-Acked-To must be a sequence")
    return BatchHeaders(
        id=check_name("X-Hyp-Batch-Id", headers["X-Hyp-Batch-Id"], kind="bad_batch_id"),
        incarnation=read_incarnation(headers),
        delivery=_read_delivery(headers),
        acked_to=None if acked_to is None else int(acked_to),
        content_sha=sha.lower() if sha else None,
        encoding=encoding if encoding in ENCODINGS else None,
        host=read_name(headers, "X-Hyp-Host"),
    )


def check_name(what: str, value: str, *, kind: str = "bad_header") -> str:
    """Return the name if it is printable and short enough. Printable text can always be encoded as UTF-8."""
    if not value or len(value) > _MAX_NAME or not value.isprintable():
        raise bad_request(kind, f"{what} must be printable text of 1 to {_MAX_NAME} characters")
    return value


def read_name(headers: Mapping[str, str], header: str) -> str | None:
    given = headers.get(header)
    return None if given is None else check_name(header, _decode(header, given))


def check_source(value: str) -> str:
    """Return the source if a database can store it."""
    if not 0 < len(value) <= _MAX_SOURCE or "\0" in value or not is_encodable(value):
        raise bad_request("bad_source", f"a source must be text of 1 to {_MAX_SOURCE} characters without NUL")
    return value


def read_incarnation(headers: Mapping[str, str]) -> str:
    """Return the incarnation, or an empty string if the client sends none."""
    return read_name(headers, "X-Hyp-Incarnation") or ""


def _read_delivery(headers: Mapping[str, str]) -> StreamRange | None:
    given = headers.get("X-Hyp-Seq-Range")
    if given is None:
        return None
    match = _RANGE.fullmatch(given)
    after, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not after < last <= _MAX_SEQ:
        raise bad_request("bad_header", "X-Hyp-Seq-Range must be <after>-<last> with <after> below <last>")
    given_source = headers.get("X-Hyp-Source")
    if given_source is None or not read_incarnation(headers):
        raise bad_request("bad_header", "X-Hyp-Seq-Range requires X-Hyp-Source and X-Hyp-Incarnation")
    return StreamRange(check_source(_decode("X-Hyp-Source", given_source)), SequenceRange(after, last))


def _decode(header: str, given: str) -> str:
    try:
        return unquote(given, errors="strict")
    except UnicodeDecodeError:
        raise bad_request("bad_header", f"{header} is not percent-encoded UTF-8") from None


def load_certificate(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the context for connections; None without a certificate. Raise UsageError if it cannot be used."""
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"cannot use the certificate {certificate}: {error}") from error
    return context
