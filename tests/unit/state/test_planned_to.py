"""The highest planned sequence of a stream, by which a rollback is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.state import snapshot, streams
from hypaware.state.schema import MIGRATIONS
from hypaware.state.store import StateStore
from hypaware.state.streams import Intent, PlannedChunk, StreamKey

KEY = StreamKey("team", "ai_gateway_messages", "claude")
PLANNED = "0008_planned"


def _older_state(path: Path, *, watermark: int | None, intent: bool) -> StateStore:
    """Return a state as an older version left it."""
    store = StateStore(path)
    store.migrate()
    with store.transaction() as connection:
        streams.create_stream(connection, KEY, "there")
        if watermark is not None:
            streams.raise_watermark(connection, KEY, watermark)
        if intent:
            streams.save_intent(connection, Intent(KEY, 7, 12, (PlannedChunk("id", "life", 7, 12, 5),)))
        connection.execute("UPDATE allocator SET next_seq = 21")
        later = [name for name, _ in MIGRATIONS[[name for name, _ in MIGRATIONS].index(PLANNED) :]]
        undone = ["0009_pins", "0010_titles", "0011_viewers", "0012_server_clocks", "0013_machines", "0014_received"]
        assert later == [PLANNED, *undone], "undo the later migrations here too"
        connection.execute("ALTER TABLE streams DROP COLUMN planned_to")
        for table in ("sources", "pending_sources"):
            connection.execute(f"DROP TABLE {table}")
        for statement in (*dict(MIGRATIONS)["0002_sources"], *dict(MIGRATIONS)["0007_ignored"]):
            connection.execute(statement)
        for table in ("titles", "server_clocks", "received", "received_days"):
            connection.execute(f"DROP TABLE {table}")
        connection.execute("ALTER TABLE server_tokens DROP COLUMN use")
        for name in later:
            connection.execute("DELETE FROM migrations WHERE name = ?", (name,))
    return store


@pytest.mark.hazard(97)
@pytest.mark.parametrize(("watermark", "intent", "planned_to"), [(7, False, 7), (7, True, 12), (None, False, 20)])
def test_a_stream_of_an_older_version_counts_everything_it_may_have_sent_as_planned(
    tmp_path: Path, watermark: int | None, intent: bool, planned_to: int
) -> None:
    """Otherwise the first delivery of the new version would take the home for one that was rolled back."""
    store = _older_state(tmp_path / "state.db", watermark=watermark, intent=intent)
    store.migrate()
    with store.reading() as connection:
        stream = streams.load_stream(connection, KEY)
    assert stream is not None
    assert stream.planned_to == planned_to


def test_a_state_of_an_older_version_can_be_read_without_a_migration(home: Home) -> None:
    home.root.mkdir()
    _older_state(home.state, watermark=7, intent=False).close()
    found = snapshot.read_snapshot(home)
    assert (found.condition, found.error) == ("older", None)
    assert found.deliveries.streams[KEY].watermark == 7
