"""Validate the rows of a batch, all or nothing: the first line that cannot be stored rejects the whole batch.

One pass parses, coerces and serialises each line as it will be stored, so that only one row at a time is an object.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from hypaware.model import canonical
from hypaware.model.coerce import RowRejected, coerce_row
from hypaware.model.datasets import GATEWAY, Dataset, Row
from hypaware.server.body import unpacked
from hypaware.server.limits import Limits
from hypaware.server.problem import Problem
from hypaware.spool import envelope

_MAX_GATEWAY = 200


@dataclass(frozen=True)
class Judged:
    lines: bytes
    """The rows as segment lines."""
    rows: int
    content_sha: str
    gateway_id: str | None
    """The gateway of the rows; None if there are no rows and the caller named no gateway."""


@dataclass(frozen=True)
class Claims:
    """What the headers and the token of a batch claim about its rows."""

    dataset: Dataset
    gateway_id: str | None
    """The gateway that every row must belong to; None if only the rows name it: then all must name the same one."""
    encoding: str | None
    content_sha: str | None


def judge(claims: Claims, body: bytes, limits: Limits) -> Judged:
    content = unpacked(body, claims.encoding, limits.max_decompressed_bytes)
    sha = sha256(content).hexdigest()
    if claims.content_sha not in (None, sha):
        raise Problem(400, "content_mismatch")
    rows = _Rows(claims, content, limits)
    lines = envelope.write_lines(rows, 0)
    return Judged(lines, rows.count, sha, rows.gateway_id)


class _Rows:
    """Iterates over the coerced rows. `count` and `gateway_id` are final after the iteration."""

    def __init__(self, claims: Claims, content: bytes, limits: Limits) -> None:
        self._claims = claims
        self._content = content
        self._limits = limits
        self.count = 0
        self.gateway_id = claims.gateway_id

    def __iter__(self) -> Iterator[Row]:
        dataset, limits, parse = self._claims.dataset, self._limits, canonical.parse
        has_gateway = GATEWAY in dataset.coercers
        for number, line in enumerate(io.BytesIO(self._content), 1):
            if len(line) > limits.max_line_bytes:
                raise _invalid_row(number, f"the line is longer than {limits.max_line_bytes} bytes")
            if line.isspace():
                continue
            if self.count == limits.max_rows:
                raise Problem(413, "too_many_rows", limit=limits.max_rows)
            try:
                raw = parse(line)
                row = coerce_row(dataset, raw, self.gateway_id or self._first_gateway(raw))
                if has_gateway and row.setdefault(GATEWAY, self.gateway_id) != self.gateway_id:
                    raise RowRejected(f"column {GATEWAY}: it names another gateway")
            except RowRejected as reason:
                raise _invalid_row(number, str(reason)) from None
            except (ValueError, RecursionError) as error:
                raise _invalid_row(number, f"not JSON: {error}") from None
            self.count += 1
            yield row

    def _first_gateway(self, raw: object) -> str:
        """Return the gateway that the first row names, for a client that enrolled without a gateway id."""
        named = raw.get(GATEWAY) if isinstance(raw, dict) else None
        if not isinstance(named, str) or not named or len(named) > _MAX_GATEWAY or not named.isprintable():
            raise RowRejected(f"column {GATEWAY}: the row or the enrolment must name the gateway")
        self.gateway_id = named
        return named


def _invalid_row(line: int, reason: str) -> Problem:
    return Problem(422, "invalid_row", line=line, reason=reason)
