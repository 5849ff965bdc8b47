"""From an exchange that has ended to rows: the `keep` of the daemon's recorder, on the recorder's own thread.

    decode → redact → project → judge (privacy) → the raw row and its messages → `storing`

Ids are made of what an exchange shows, so whatever comes twice, after a restart or from a reprojection, is dropped by
the flush. `Seen` knows only what this process has made rows of; when rows are lost it is emptied, and the next request
of each conversation shows them again.

Messages without the client's own id wait for their transcript. A message that does not fit its table is handed to the
spool as it is: the flush refuses it and keeps it with the reason. What nobody here can read is kept raw and counted by
its path. What privacy says is `ignore` leaves no trace but a number.
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
from hypaware.capture.project import Projection, Seen, project
from hypaware.capture.project.projection import SessionFacts
from hypaware.capture.recording import Recording
from hypaware.capture.redact_exchange import redacted
from hypaware.capture.storing import Entry, Storing
from hypaware.config import Config
from hypaware.spool.writer import Spool

_SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "session_id", "thread-id", "conversation_id")
# What is forgotten of a session is stored once more, when it goes on.
_MOST_SESSIONS = 48
_MOST_FOLDERS = 512
_MOST_NAMES = 50
OTHER_PATHS, OTHER_KINDS = "other paths", "other kinds"
_EMPTY = ("block_without_text", "bad_block", "empty_content")

log = logging.getLogger("hypaware.gateway")


@dataclass(frozen=True)
class Tally:
    """What became of the exchanges; counts and names alone."""

    recorded: int = 0
    ignored: int = 0
    lost: int = 0
    """They could not be stored, and never will be."""
    rows: int = 0
    rejected_rows: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Path → exchanges that nobody can read."""
    without_row: Mapping[str, int] = field(default_factory=dict)
    """Kind → items and blocks of conversations that make no row."""
    redacted: Mapping[str, int] = field(default_factory=dict)
    """Rule → how often it found a secret in what was said."""
    last_exchange_at: datetime | None = None


class TakingDown:
    def __init__(
        self,
        spool: Spool,
        config: Config,
        *,
        facts: SessionFacts = lambda _session_id: {},
        saw: Callable[[str, datetime], None] = lambda _client, _at: None,
    ) -> None:
        """`facts`: what hooks have noted of a session. `saw` hears of each exchange whose client is known."""
        self._home, self._gateway_id = spool.home, spool.gateway_id
        self._facts = facts
        self._saw = saw
        self._seen, self._parts = Seen(), StoredParts(max_sessions=_MOST_SESSIONS)
        self._folders: OrderedDict[str, str] = OrderedDict()
        self._tally = Tally()
        self._rows_were_lost = threading.Event()
        self._keeping, self._lock = threading.Lock(), threading.RLock()
        self._storing = Storing(spool, self._lose)
        self.follow(config)

    def follow(self, config: Config) -> None:
        """For what ends from now on."""
        self._redaction = config.redaction
        self._privacy = Privacy(
            self._home,
            config.privacy.folders,
            PrivacyClass.named(config.privacy.unknown_folder),
            cwd_of=self._folder_of,
            remembers=True,
        )

    @property
    def tally(self) -> Tally:
        return self._tally

    def hurry(self) -> None:
        """The end is near: what cannot be stored now is not waited for."""
        self._storing.hurry()

    def close(self) -> None:
        """Returns when all that was kept is durable."""
        self._storing.close()

    def __call__(self, recording: Recording) -> None:
        """Takes it over: it is durable a moment later. Waits while nothing can be stored."""
        # A gateway that moves to another address has two recorders for a while.
        with self._keeping:
            entry = self._made(recording)
            if entry is not None:
                self._storing.add(entry)

    def _made(self, recording: Recording) -> Entry | None:
        if self._rows_were_lost.is_set():
            self._rows_were_lost.clear()
            self._seen.forget()
        decoded = decode(recording)
        found: Counter[str] = Counter()
        if self._redaction.kept:
            decoded, found = redacted(decoded, self._redaction.rules_off)
        projection = project(decoded, self._seen, facts=self._facts)
        try:
            if client := projection.client_name or decoded.client_name:
                self._saw(client, decoded.ended_at)
            if self._is_ignored(decoded, projection):
                self._seen.rollback(projection.changes)
                self._count(decoded, ignored=1)
                return None
            return self._entry(decoded, projection, found)
        except BaseException:
            self._seen.rollback(projection.changes)
            raise

    def _is_ignored(self, decoded: Decoded, projection: Projection) -> bool:
        headers = decoded.request_headers
        session = projection.session_id or next((headers[name] for name in _SESSION_HEADERS if name in headers), None)
        cwd = next((row["cwd"] for row in projection.rows if row.get("cwd")), None)
        if cwd and session:
            # Calls that are no part of the conversation do not say it.
            self._folders[session] = cwd
            self._folders.move_to_end(session)
            if len(self._folders) > _MOST_FOLDERS:
                self._folders.popitem(last=False)
        return self._privacy.class_of(cwd, session) is PrivacyClass.IGNORE

    def _folder_of(self, session: str) -> str | None:
        return self._facts(session).get("cwd") or self._folders.get(session)

    def _entry(self, decoded: Decoded, projection: Projection, found: Counter[str]) -> Entry:
        with self._lock:
            raw = raw_row(decoded, projection, self._parts)
        row, is_whole = fitting.exchange(raw.row, self._gateway_id)
        messages = fitting.messages(projection.rows, self._gateway_id)
        for reason in messages.refused:
            log.warning("exchange %s: a message is set aside, it does not fit: %s", decoded.exchange_id, reason)

        def stored() -> None:
            with self._lock:
                if is_whole:
                    raw.keep(self._parts)
                self._count(
                    decoded,
                    recorded=1,
                    rows=len(messages.own) + len(messages.without_id),
                    rejected_rows=len(messages.refused),
                    skipped=projection.skipped,
                    redacted=found,
                )

        size = sum(len(text) for text in (decoded.request_text, decoded.response_text) if text)
        return Entry(row, messages.own, messages.without_id, size, stored)

    def _lose(self, exchanges: int) -> None:
        self._rows_were_lost.set()
        with self._lock:
            self._tally = replace(self._tally, lost=self._tally.lost + exchanges)

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
            now = self._tally
            self._tally = replace(
                now,
                recorded=now.recorded + recorded,
                ignored=now.ignored + ignored,
                rows=now.rows + rows,
                rejected_rows=now.rejected_rows + rejected_rows,
                unknown=_with(now.unknown, _by_name(skipped, _unknown_path), OTHER_PATHS),
                without_row=_with(now.without_row, _by_name(skipped, _kind_without_row), OTHER_KINDS),
                redacted=dict(Counter(now.redacted) + Counter(redacted or {})),
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


def _with(before: Mapping[str, int], found: Iterable[tuple[str, int]], others: str) -> Mapping[str, int]:
    """Bounded: a stranger's names do not fill the memory."""
    counts = Counter(before)
    for name, count in found:
        counts[name if name in counts or len(counts) < _MOST_NAMES else others] += count
    return dict(counts)
