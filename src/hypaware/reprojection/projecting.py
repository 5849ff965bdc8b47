"""Project stored exchanges to coerced message rows, in batches.

Every exchange is read, including those before the window: their history is then known, and a request in the window
gives only its new messages. The window therefore selects rows, but never changes their ids.
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
from hypaware.capture.project.projection import Projection, SessionFacts
from hypaware.capture.project.seen import Seen
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
    """The first day that retention keeps; older rows are not added again."""

    @classmethod
    def of(cls, home: Home, config: Config, gateway_id: str, window: Window) -> Terms:
        facts = session_facts(home.root)
        unknown = PrivacyClass.parse(config.privacy.unknown_folder)
        privacy = Privacy(home, config.privacy.folders, unknown, find_cwd=lambda session: facts(session).get("cwd"))
        return cls(gateway_id, window, privacy, facts, metadata.retained_from(home, AI_GATEWAY_MESSAGES.name))


def session_facts(root: Path) -> SessionFacts:
    environment = {"HYP_HOME": str(root)}
    return lambda session: session_context.records(environment).get(session, {})


def batches(
    stored: Iterable[Row], terms: Terms, parts: Parts, outcome: Outcome, progress: Callable[[int], None]
) -> Iterator[list[Row]]:
    """Yield batches of rows. Count exchanges and rows in `outcome`."""
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
    conversations = Seen()
    exchanges, read = tee(_own(stored, terms, outcome))
    for exchange, projection in zip(
        exchanges, reproject(read, facts=terms.facts, conversations=conversations, parts=parts), strict=True
    ):
        wanted = terms.window.contains(exchange["ts_start"])
        outcome.exchanges += wanted
        if _is_ignored(exchange, projection, terms.privacy):
            conversations.rollback(projection.changes)
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
        elif terms.window.contains(row["ts_start"]):
            outcome.skipped["another_gateway"] += 1


def _kept(exchange: Row, projection: Projection, terms: Terms, outcome: Outcome) -> list[Row]:
    outcome.skipped += projection.skipped
    if session := projection.session_id or exchange.get("session_id"):
        outcome.sessions.add(session)
    kept = []
    lacks_beginning = bool(exchange.get("decoded")) and _has_no_beginning(projection)
    for row in projection.rows:
        if lacks_beginning and _is_history(row):
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
    """Tell whether the first exchanges of the conversation may no longer be stored.

    The history that the request repeats was recorded at the time, under the ids that it gets now; or it was skipped,
    because it belongs to the conversation that this one was forked from. It is unknown which.
    """
    changes = projection.changes
    return changes is not None and changes.is_new and not changes.is_fork


def _is_history(row: Row) -> bool:
    """Tell whether the message is older than its exchange."""
    gateway = canonical.parse(row["attributes"])["gateway"]
    return bool(gateway.get("time_source") == "request")


def _is_ignored(exchange: Row, projection: Projection, privacy: Privacy) -> bool:
    """Apply the current privacy rules to the session and its folder."""
    session: Any = projection.session_id or exchange.get("session_id")
    cwd = next((row["cwd"] for row in projection.rows if row.get("cwd")), None)
    return privacy.class_of(cwd, session) is PrivacyClass.IGNORE
