"""The exchange writer: turns finished exchanges into rows and stores them, on the recorder's thread.

    write: decode → redact → project → apply the privacy policy → raw row and message rows
    store: append the raw rows of all written exchanges, then their native messages, then their fallback messages

`store` appends the rows of many exchanges with one fsync for each of these three. After a crash in between, raw rows
exist without their messages: `hyp reproject` creates them, and so does the next request of the conversation.

Ids derive from the content of an exchange, so the flush drops rows that arrive twice. `ConversationCache` is cleared
when rows are lost, so that the next request of each conversation produces them again.

A message that does not fit its table goes to the spool unchanged: the flush rejects it and stores it with the reason.
If it cannot even be serialized, the raw exchange still holds it. An exchange in an unknown dialect, or one that cannot
be read, is stored raw and counted by its path. An exchange whose privacy class is `ignore` leaves nothing but a count.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import orjson

from hypaware import faults
from hypaware.config import Config
from hypaware.errors import Retryable
from hypaware.gateway.decode import decode_exchange
from hypaware.gateway.exchange import DecodedExchange, RecordedExchange
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import Projection, SessionFacts, project_exchange, skip_exchange
from hypaware.gateway.raw_exchanges import RawRow, StoredParts, build_raw_row
from hypaware.gateway.senders import list_session_headers
from hypaware.model.datasets import Row, RowRejected, coerce_row
from hypaware.model.privacy_class import PrivacyClass
from hypaware.model.schemas import AI_GATEWAY_EXCHANGES, AI_GATEWAY_MESSAGES
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.privacy.redact import Redaction, load_marker_key
from hypaware.spool.writer import Spool

_BODY_COLUMNS = ("request_body", "response_body", "body_refs")
# A session that was evicted is stored once more if it continues.
_MAX_SESSIONS = 48
_MAX_FOLDERS = 512
_MAX_NAMES = 50
OTHER_PATHS, OTHER_KINDS = "other paths", "other kinds"
_EMPTY_CONTENT = ("block_without_text", "bad_block", "empty_content")
log = logging.getLogger("hypaware.gateway")
MAX_ENTRIES = 64
MAX_BYTES = 4 << 20
_after_raw = faults.crash_point("gateway.store.after-raw", "raw exchanges are durable, none of their messages is")


@dataclass(frozen=True)
class ExchangeCounts:
    """What became of the exchanges: counts and names only."""

    recorded: int = 0
    ignored: int = 0
    lost: int = 0
    """Could not be stored and never will be."""
    rows: int = 0
    rejected_rows: int = 0
    unreachable: int = 0
    """The provider could not be reached, so there is no conversation to record."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Path → exchanges in an unknown dialect."""
    without_row: Mapping[str, int] = field(default_factory=dict)
    """Kind → items and blocks of conversations that produce no row."""
    redacted: Mapping[str, int] = field(default_factory=dict)
    """Rule → how many secrets it found."""
    last_exchange_at: datetime | None = None


class ExchangeWriter:
    def __init__(
        self,
        spool: Spool,
        config: Config,
        *,
        facts: SessionFacts = lambda _session_id: {},
        on_client_seen: Callable[[str, datetime], None] = lambda _client, _at: None,
    ) -> None:
        """`facts` returns what hooks have noted about a session. `on_client_seen` is called for each exchange whose
        client is known."""
        self._spool, self._home, self._gateway_id = spool, spool.home, spool.gateway_id
        self._facts = facts
        self._on_client_seen = on_client_seen
        self._conversations, self._parts = ConversationCache(), StoredParts(max_sessions=_MAX_SESSIONS)
        self._folders: OrderedDict[str, str] = OrderedDict()
        self.counts = ExchangeCounts()
        self._waiting: list[ExchangeRows] = []
        """Written and not stored; at most MAX_ENTRIES, or MAX_BYTES and one more."""
        self._batches: deque[_Batch] = deque()
        """What `store` has begun to store."""
        self._writing = threading.RLock()
        self.update_config(config)

    def update_config(self, config: Config) -> None:
        """Apply a changed config to exchanges that end from now on."""
        rules_off = frozenset(config.redaction.rules_off)
        self._redaction = Redaction(load_marker_key(self._home), rules_off) if config.redaction.kept else None
        self._privacy = PrivacyPolicy(
            self._home,
            config.privacy.folders,
            PrivacyClass.parse(config.privacy.unknown_folder),
            find_cwd=lambda session: self._facts(session).get("cwd") or self._folders.get(session),
            remember=True,
        )

    def close(self) -> None:
        """Store the exchanges that wait. Those that the spool cannot take now are lost."""
        with self._writing:
            try:
                self.store()
            except Retryable as error:
                lost = sum(len(batch.entries) for batch in self._batches)
                log.error("could not store %d exchanges: %s", lost, error.message)
                self._batches.clear()
                self._count_lost(lost)

    def write(self, recording: RecordedExchange) -> None:
        """Turn an exchange into rows; `store` makes them durable. Raise Retryable if the spool takes no rows now."""
        # A gateway that moves to another address has two recorders for a while.
        with self._writing:
            is_full = len(self._waiting) >= MAX_ENTRIES or sum(each.size for each in self._waiting) >= MAX_BYTES
            if is_full or self._batches:
                self.store()
            decoded = decode_exchange(recording, self._redaction)
            try:
                projection = project_exchange(decoded, self._conversations, facts=self._facts)
            except Retryable:
                raise
            except Exception as error:
                # A defect, in the code of a client for example: the exchange is stored raw and counted. The error's
                # text may quote it, so only its type is logged. The cache may have parts that no row has.
                log.error("could not read the conversation of an exchange: %s", type(error).__name__)
                self._conversations.clear()
                projection = skip_exchange(decoded, "unreadable_request")
            try:
                if client := projection.client_name or decoded.client_name:
                    self._on_client_seen(client, decoded.ended_at)
                headers = decoded.request_headers
                stated = next((headers[name] for name in list_session_headers() if name in headers), None)
                session = projection.session_id or stated
                cwd = next((row["cwd"] for row in projection.rows if row.get("cwd")), None)
                if cwd and session:
                    # Requests that are not part of the conversation do not name the folder.
                    self._folders[session] = cwd
                    self._folders.move_to_end(session)
                    if len(self._folders) > _MAX_FOLDERS:
                        self._folders.popitem(last=False)
                if self._privacy.decide(cwd, session).privacy_class is PrivacyClass.IGNORE:
                    self._conversations.rollback(projection.changes)
                    counts = self.counts
                    self.counts = replace(counts, ignored=counts.ignored + 1, last_exchange_at=decoded.ended_at)
                    return
                rows = build_rows(decoded, projection, self._parts, self._gateway_id)
            except BaseException:
                self._conversations.rollback(projection.changes)
                raise
            self._waiting.append(rows)

    def store(self) -> None:
        """Store the rows of all written exchanges. An exchange that fails for a reason of its own is lost and counted.

        Raise Retryable if the spool cannot take rows (a full disk). The next call continues from there, so that nothing
        is stored twice.
        """
        with self._writing:
            if self._waiting:
                self._batches.append(_Batch(self._waiting, self._spool.append_coerced))
                self._waiting = []
            while self._batches:
                batch = self._batches[0]
                try:
                    while batch.steps:
                        batch.steps[0]()
                        batch.steps.popleft()
                    for entry in batch.entries:
                        self._parts.add(entry.raw)
                        self._count_stored(entry)
                except Retryable:
                    raise
                except Exception as error:
                    if len(batch.entries) > 1:
                        self._batches += [_Batch([entry], self._spool.append_coerced) for entry in batch.entries]
                    else:
                        # The error's text may quote the exchange, so only its type is logged.
                        log.error("could not store an exchange: %s", type(error).__name__)
                        self._count_lost(1)
                self._batches.popleft()

    def _count_stored(self, stored: ExchangeRows) -> None:
        counts = self.counts
        unknown, without_row = _add_skipped(counts, stored.skipped)
        self.counts = replace(
            counts,
            recorded=counts.recorded + 1,
            rows=counts.rows + len(stored.native_rows) + len(stored.fallback_rows),
            rejected_rows=counts.rejected_rows + stored.rejected,
            unreachable=counts.unreachable + stored.is_unreachable,
            unknown=unknown,
            without_row=without_row,
            redacted=dict(Counter(counts.redacted) + Counter(stored.redacted)),
            last_exchange_at=stored.ended_at,
        )

    def _count_lost(self, lost: int) -> None:
        self._conversations.clear()
        self.counts = replace(self.counts, lost=self.counts.lost + lost)


def _add_skipped(counts: ExchangeCounts, skipped: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the new `unknown` and `without_row`, with a limited number of names: they come from the client."""
    unknown, without_row = Counter(counts.unknown), Counter(counts.without_row)
    for each, count in skipped.items():
        reason, _, name = each.partition(":")
        if reason in ("no_dialect", "unreadable_request"):
            total, others = unknown, OTHER_PATHS
        elif reason in ("unknown_type", *_EMPTY_CONTENT):
            total, others = without_row, OTHER_KINDS
            name = name if reason == "unknown_type" else reason
        else:
            continue
        if name:
            total[name if name in total or len(total) < _MAX_NAMES else others] += count
    return dict(unknown), dict(without_row)


@dataclass(frozen=True)
class ExchangeRows:
    raw: RawRow
    native_rows: Sequence[Row]
    """Messages with the client's own id, and those that the flush will reject."""
    fallback_rows: Sequence[Row]
    """Messages that may wait for their transcript."""
    rejected: int
    skipped: Mapping[str, int]
    redacted: Mapping[str, int]
    is_unreachable: bool
    ended_at: datetime
    size: int
    """Approximate size in memory, in bytes."""


def build_rows(decoded: DecodedExchange, projection: Projection, parts: StoredParts, gateway_id: str) -> ExchangeRows:
    """Build the raw row and the message rows of an exchange, with the types of their tables."""
    raw = build_raw_row(decoded, projection, parts)
    try:
        raw = replace(raw, row=coerce_row(AI_GATEWAY_EXCHANGES, raw.row, gateway_id))
    except RowRejected as reason:
        row = coerce_row(AI_GATEWAY_EXCHANGES, drop_bodies(raw.row, reason), gateway_id)
        raw = replace(raw, row=row, new=frozenset())
    native: list[Row] = []
    fallback: list[Row] = []
    rejected = 0
    for row in projection.rows:
        try:
            stored = coerce_row(AI_GATEWAY_MESSAGES, row, gateway_id)
            (fallback if is_fallback_row(stored) else native).append(stored)
        except RowRejected as reason:
            rejected += 1
            column = _column_of(reason)
            log.warning("exchange %s: a message that does not fit will be rejected: %s", decoded.exchange_id, column)
            with suppress(TypeError):
                orjson.dumps(row)
                native.append(row)
    return ExchangeRows(
        raw=raw,
        native_rows=native,
        fallback_rows=fallback,
        rejected=rejected,
        skipped=projection.skipped,
        redacted=decoded.redacted,
        is_unreachable=decoded.error == "upstream_down",
        ended_at=decoded.ended_at,
        size=sum(len(text) for text in (decoded.request_text, decoded.response_text) if text),
    )


def drop_bodies(row: Row, reason: RowRejected) -> Row:
    """Return a raw row that does not fit without its bodies. Then it always fits, and `error` names the column."""
    reduced = {name: value for name, value in row.items() if name not in _BODY_COLUMNS}
    reduced["error"] = "; ".join(each for each in (row.get("error"), f"not kept: {_column_of(reason)}") if each)
    return reduced


def is_fallback_row(row: Mapping[str, Any]) -> bool:
    """Return whether the gateway made up the row's identity, so that a transcript may replace it."""
    attributes = row.get("attributes")
    values = orjson.loads(attributes) if isinstance(attributes, str) else attributes
    gateway = values.get("gateway") if isinstance(values, Mapping) else None
    return isinstance(gateway, Mapping) and gateway.get("identity_source") == "gateway_fallback"


def _column_of(reason: RowRejected) -> str:
    """Return the name of the column; the rest of the message may quote content."""
    return str(reason).partition(":")[0]


class _Batch:
    """Exchanges whose rows are appended together, and the steps of it that remain to be done."""

    def __init__(self, entries: Sequence[ExchangeRows], append: Callable[..., int]) -> None:
        self.entries = entries
        raws = [entry.raw.row for entry in entries]
        native = [row for entry in entries for row in entry.native_rows]
        fallback = [row for entry in entries for row in entry.fallback_rows]
        self.steps: deque[Callable[[], object]] = deque(
            (
                lambda: append(AI_GATEWAY_EXCHANGES.name, raws),
                _after_raw,
                lambda: append(AI_GATEWAY_MESSAGES.name, native),
                lambda: append(AI_GATEWAY_MESSAGES.name, fallback, deferrable=True),
            )
        )
