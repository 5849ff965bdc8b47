"""The daemon keeps the index up to date, without loading what reads data files."""

from __future__ import annotations

from hypaware.index.builder import read_index_status
from tests.support.daemon_home import NO_CLIENTS, DaemonHome
from tests.support.delivery_home import write_config
from tests.support.light_home import append, flush
from tests.support.processes import eventually
from tests.support.rows import rows


def indexed_rows(daemon: DaemonHome) -> int:
    status = read_index_status(daemon.home)
    return 0 if status["building"] or status["lag_rows"] else int(status["rows"])


def test_rows_are_indexed_soon_after_their_commit(daemon: DaemonHome) -> None:
    write_config(daemon.home, NO_CLIENTS)
    append(daemon.home, rows(3))
    flush(daemon.home)
    with daemon.running() as running:
        eventually(lambda: indexed_rows(daemon) == 3)
        append(daemon.home, rows(2, start=3))
        flush(daemon.home)
        eventually(lambda: indexed_rows(daemon) == 5)
        # An index that was deleted or damaged is built again.
        daemon.home.index.write_bytes(b"no database")
        eventually(lambda: indexed_rows(daemon) == 5)
        assert "pyarrow" not in running.stop()
