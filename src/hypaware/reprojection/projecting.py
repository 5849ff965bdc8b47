"""From stored exchanges to the rows that they give today, a batch at a time, each row as the spool would store it.

Every exchange is read, also those before the window: what they said is known then, and a request in the window gives
only what it added. So whether a window is asked for changes which rows come, and never their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import tee
from pathlib import Path
from typing import Any

from hypaware.backfill.pinned import Window
from hypaware.capture.exchanges import Parts, reproject
from hypaware.capture.privacy import Privacy
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.capture.project import Projection, Seen
from hypaware.capture.project.projection import SessionFacts
from hypaware.clients.claude import session_context
from hypaware.config import Config
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.model import canonical
from hypaware.model.coerce import RowRejected, coerce_row
from hypaware.model.datasets import GATEWAY, Row
from hypaware.model.messages import AI_GATEWAY_MESSAGES
from hypaware.reprojection.outcome import Outcome

BATCH_ROWS = 5_000


@dataclass(frozen=True)
class Terms:
    gateway_id: str
    window: Window
    privacy: Privacy
    facts: SessionFacts
    retained_from: str | None
    """The first day that retention has left; nothing comes back before it."""

    @classmethod
    def of(cls, home: Home, config: Config, gateway_id: str, window: Window) -> Terms:
        facts = session_facts(home.root)
        unknown = PrivacyClass.named(config.privacy.unknown_folder)
        privacy = Privacy(home, config.privacy.folders, unknown, cwd_of=lambda session: facts(session).get("cwd"))
        return cls(gateway_id, window, privacy, facts, metadata.retained_from(home, AI_GATEWAY_MESSAGES.name))


def session_facts(root: Path) -> SessionFacts:
    environment = {"HYP_HOME": str(root)}
    return lambda session: session_context.records(environment).get(session, {})


def batches(
    stored: Iterable[Row], terms: Terms, parts: Parts, outcome: Outcome, progress: Callable[[int], None]
) -> Iterator[list[Row]]:
    """Counts in `outcome` what it reads and projects."""
    batch: list[Row] = []
    for number, rows in enumerate(_projected(stored, terms, parts, outcome)):
        progress(number)
        batch += rows
        if len(batch) >= BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _projected(stored: Iterable[Row], terms: Terms, parts: Parts, outcome: Outcome) -> Iterator[list[Row]]:
    seen = Seen()
    exchanges, read = tee(_own(stored, terms, outcome))
    for exchange, projection in zip(exchanges, reproject(read, facts=terms.facts, seen=seen, parts=parts), strict=True):
        wanted = terms.window.holds(exchange["ts_start"])
        outcome.exchanges += wanted
        if _is_ignored(exchange, projection, terms.privacy):
            seen.rollback(projection.changes)
            outcome.skipped["ignored"] += wanted
            yield []
        elif wanted:
            yield _kept(exchange, projection, terms, outcome)
        else:
            yield []


def _own(stored: Iterable[Row], terms: Terms, outcome: Outcome) -> Iterator[Row]:
    for row in stored:
        if row[GATEWAY] == terms.gateway_id:
            yield row
        elif terms.window.holds(row["ts_start"]):
            outcome.skipped["another_gateway"] += 1


def _kept(exchange: Row, projection: Projection, terms: Terms, outcome: Outcome) -> list[Row]:
    outcome.skipped += projection.skipped
    if session := projection.session_id or exchange.get("session_id"):
        outcome.sessions.add(session)
    kept = []
    without_beginning = bool(exchange.get("decoded")) and _has_no_beginning(projection)
    for row in projection.rows:
        if without_beginning and _is_history(row):
            outcome.skipped["earlier_history"] += 1
            continue
        outcome.rows_projected += 1
        try:
            stored = coerce_row(AI_GATEWAY_MESSAGES, row, terms.gateway_id)
        except RowRejected:
            outcome.rows_rejected += 1
            continue
        if terms.retained_from is not None and stored["date"] < terms.retained_from:
            outcome.skipped["before_retention"] += 1
        else:
            kept.append(stored)
    return kept


def _has_no_beginning(projection: Projection) -> bool:
    """Whether the first exchanges of its conversation may not be kept any more.

    The history that it repeats was recorded at the time, under the ids that it gets now; or it was left out, since it
    is another conversation's that this one is a fork of. Nobody can tell which.
    """
    changes = projection.changes
    return changes is not None and changes.created and not changes.forked


def _is_history(row: Row) -> bool:
    """Whether it was said at some time before its exchange."""
    gateway = canonical.parse(row["attributes"])["gateway"]
    return bool(gateway.get("time_source") == "request")


def _is_ignored(exchange: Row, projection: Projection, privacy: Privacy) -> bool:
    """As it is judged today: by the session, its folder, and what they say now."""
    session: Any = projection.session_id or exchange.get("session_id")
    cwd = next((row["cwd"] for row in projection.rows if row.get("cwd")), None)
    return privacy.class_of(cwd, session) is PrivacyClass.IGNORE
