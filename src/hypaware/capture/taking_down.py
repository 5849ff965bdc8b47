"""The exchange writer: turns a finished exchange into rows and stores them. It is the exchange handler of the daemon's
recorder and runs on the recorder's thread.

    decode → redact → project → apply the privacy policy → raw row and message rows → spool writer

Ids derive from the content of an exchange, so the flush drops rows that arrive twice, after a restart or from a
reprojection. `ConversationCache` knows only the rows of this process. It is cleared when rows are lost, so that the
next request of each conversation produces them again.

Messages without the client's own id wait for their transcript. A message that does not fit its table goes to the spool
unchanged: the flush rejects it and keeps it with the reason. An exchange in an unknown dialect is stored raw and
counted by its path. An exchange whose privacy class is `ignore` leaves nothing but a count.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from hypaware.capture import fitting
from hypaware.capture.body_parts import StoredParts
from hypaware.capture.decode import decode
from hypaware.capture.decoded import Decoded
from hypaware.capture.exchanges import raw_row
from hypaware.capture.privacy import Privacy
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.capture.project.projection import Projection, SessionFacts, project
from hypaware.capture.project.seen import Seen
from hypaware.capture.recording import Recording
from hypaware.capture.redact_exchange import redacted
from hypaware.capture.storing import Entry, Storing
from hypaware.config import Config
from hypaware.spool.writer import Spool

_SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "session_id", "thread-id", "conversation_id")
# A session that was evicted is stored once more if it continues.
_MOST_SESSIONS = 48
_MOST_FOLDERS = 512
_MOST_NAMES = 50
OTHER_PATHS, OTHER_KINDS = "other paths", "other kinds"
_EMPTY = ("block_without_text", "bad_block", "empty_content")

log = logging.getLogger("hypaware.gateway")


@dataclass(frozen=True)
class Tally:
    """What became of the exchanges: counts and names only."""

    recorded: int = 0
    ignored: int = 0
    lost: int = 0
    """Could not be stored and never will be."""
    rows: int = 0
    rejected_rows: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Path → exchanges in an unknown dialect."""
    without_row: Mapping[str, int] = field(default_factory=dict)
    """Kind → items and blocks of conversations that produce no row."""
    redacted: Mapping[str, int] = field(default_factory=dict)
    """Rule → how many secrets it found."""
    last_exchange_at: datetime | None = None


class TakingDown:
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
        self._home, self._gateway_id = spool.home, spool.gateway_id
        self._facts = facts
        self._on_client_seen = on_client_seen
        self._conversations, self._parts = Seen(), StoredParts(max_sessions=_MOST_SESSIONS)
        self._folders: OrderedDict[str, str] = OrderedDict()
        self._counts = Tally()
        self._lost_rows = threading.Event()
        self._writing, self._lock = threading.Lock(), threading.RLock()
        self._spool_writer = Storing(spool, self._count_lost)
        self.update_config(config)

    def update_config(self, config: Config) -> None:
        """Apply a changed config to exchanges that end from now on."""
        self._redaction = config.redaction
        self._privacy = Privacy(
            self._home,
            config.privacy.folders,
            PrivacyClass.parse(config.privacy.unknown_folder),
            find_cwd=self._working_directory,
            remember=True,
        )

    @property
    def counts(self) -> Tally:
        return self._counts

    def stop_retrying(self) -> None:
        """Give up on rows that cannot be stored at once, because the daemon is stopping."""
        self._spool_writer.stop_retrying()

    def close(self) -> None:
        """Return when all accepted exchanges are durable."""
        self._spool_writer.close()

    def write(self, recording: Recording) -> None:
        """Accept an exchange; it is durable a moment later. Blocks while nothing can be stored."""
        # A gateway that moves to another address has two recorders for a while.
        with self._writing:
            rows = self._project(recording)
            if rows is not None:
                self._spool_writer.add(rows)

    def _project(self, recording: Recording) -> Entry | None:
        if self._lost_rows.is_set():
            self._lost_rows.clear()
            self._conversations.clear()
        decoded = decode(recording)
        redactions: Counter[str] = Counter()
        if self._redaction.kept:
            decoded, redactions = redacted(decoded, self._redaction.rules_off)
        projection = project(decoded, self._conversations, facts=self._facts)
        try:
            if client := projection.client_name or decoded.client_name:
                self._on_client_seen(client, decoded.ended_at)
            if self._is_ignored(decoded, projection):
                self._conversations.rollback(projection.changes)
                self._count(decoded, ignored=1)
                return None
            return self._build_rows(decoded, projection, redactions)
        except BaseException:
            self._conversations.rollback(projection.changes)
            raise

    def _is_ignored(self, decoded: Decoded, projection: Projection) -> bool:
        headers = decoded.request_headers
        session = projection.session_id or next((headers[name] for name in _SESSION_HEADERS if name in headers), None)
        cwd = next((row["cwd"] for row in projection.rows if row.get("cwd")), None)
        if cwd and session:
            # Requests that are not part of the conversation do not name the folder.
            self._folders[session] = cwd
            self._folders.move_to_end(session)
            if len(self._folders) > _MOST_FOLDERS:
                self._folders.popitem(last=False)
        return self._privacy.class_of(cwd, session) is PrivacyClass.IGNORE

    def _working_directory(self, session: str) -> str | None:
        return self._facts(session).get("cwd") or self._folders.get(session)

    def _build_rows(self, decoded: Decoded, projection: Projection, redactions: Counter[str]) -> Entry:
        with self._lock:
            raw = raw_row(decoded, projection, self._parts)
        row, is_complete = fitting.exchange(raw.row, self._gateway_id)
        messages = fitting.messages(projection.rows, self._gateway_id)
        for reason in messages.rejected:
            log.warning("exchange %s: a message that does not fit will be rejected: %s", decoded.exchange_id, reason)

        def on_stored() -> None:
            with self._lock:
                if is_complete:
                    raw.mark_stored(self._parts)
                self._count(
                    decoded,
                    recorded=1,
                    rows=len(messages.native) + len(messages.fallback),
                    rejected_rows=len(messages.rejected),
                    skipped=projection.skipped,
                    redacted=redactions,
                )

        size = sum(len(text) for text in (decoded.request_text, decoded.response_text) if text)
        return Entry(row, messages.native, messages.fallback, size, on_stored)

    def _count_lost(self, exchanges: int) -> None:
        self._lost_rows.set()
        with self._lock:
            self._counts = replace(self._counts, lost=self._counts.lost + exchanges)

    def _count(
        self,
        decoded: Decoded,
        *,
        recorded: int = 0,
        ignored: int = 0,
        rows: int = 0,
        rejected_rows: int = 0,
        skipped: Mapping[str, int] | None = None,
        redacted: Mapping[str, int] | None = None,
    ) -> None:
        with self._lock:
            counts = self._counts
            self._counts = replace(
                counts,
                recorded=counts.recorded + recorded,
                ignored=counts.ignored + ignored,
                rows=counts.rows + rows,
                rejected_rows=counts.rejected_rows + rejected_rows,
                unknown=_with(counts.unknown, _by_name(skipped, _unknown_path), OTHER_PATHS),
                without_row=_with(counts.without_row, _by_name(skipped, _kind_without_row), OTHER_KINDS),
                redacted=dict(Counter(counts.redacted) + Counter(redacted or {})),
                last_exchange_at=decoded.ended_at,
            )


def _unknown_path(skipped: str) -> str | None:
    reason, _, path = skipped.partition(":")
    return path if reason in ("no_dialect", "unreadable_request") else None


def _kind_without_row(skipped: str) -> str | None:
    reason, _, kind = skipped.partition(":")
    if reason == "unknown_type":
        return kind
    return reason if reason in _EMPTY else None


def _by_name(skipped: Mapping[str, int] | None, name_of: Callable[[str], str | None]) -> Iterator[tuple[str, int]]:
    return ((name, count) for reason, count in (skipped or {}).items() if (name := name_of(reason)))


def _with(counts: Mapping[str, int], added: Iterable[tuple[str, int]], others: str) -> Mapping[str, int]:
    """Add counts under at most `_MOST_NAMES` names, so that a client's input cannot fill the memory."""
    total = Counter(counts)
    for name, count in added:
        total[name if name in total or len(total) < _MOST_NAMES else others] += count
    return dict(total)
