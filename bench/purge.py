"""Measure the purge of one session: `python -m bench.purge [--rows 1000000] [--large]` (large: 10 million rows).

Only files that hold the session are rewritten, so the time depends on the number of files to search and on the bytes of
those few. A purge that finds nothing and a dry run show the search alone. The last lines compare a flush before and
after ten thousand more sessions were purged.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.history import temporary_home
from bench.measure import Commands, Measured, seconds
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import tombstones
from hypaware.lake.tombstones import Tombstone

_DATASET = "ai_gateway_messages"
_SESSION = "session-777"
_ROWS_OF_A_SESSION = 400
_CLOSED = 10_000
_FLUSHED = 1_000
_ROUNDS = 3
_AT = "2026-11-15T00:00:00+00:00"


def measure(commands: Commands, rows: int) -> list[Measured]:
    home = Home(commands.home)
    commands.run([sys.executable, "-m", "bench.large_lake", str(home.root), str(rows)])
    files = _files(home)
    found: list[Measured] = []
    commands.hyp("purge", "--session", "no-such-session", "--yes")
    dry = seconds(lambda: commands.hyp("purge", "--session", _SESSION, "--dry-run"))
    told: list[dict[str, Any]] = []
    spent = seconds(lambda: told.append(commands.hyp("purge", "--session", _SESSION, "--yes")))
    nothing = seconds(lambda: commands.hyp("purge", "--session", "no-such-session", "--yes"))
    (table,) = told[0]["datasets"]
    if (table["rows"], told[0]["remaining"]) != (_ROWS_OF_A_SESSION, []):
        raise SystemExit(f"the purge removed {table['rows']} rows and left {told[0]['remaining']}")
    looked, written = table["files_looked_at"], table["files_rewritten"] + table["files_removed"]
    found += [
        Measured(f"dry run, {rows:,} rows in {files:,} files", "-", f"{dry:.1f} s"),
        Measured(f"purge of one session, {_ROWS_OF_A_SESSION} rows", "-", f"{spent:.1f} s"),
        Measured("files written again, of those looked at", "those that hold it", f"{written} of {looked:,}"),
        Measured("purge of a session that is not there", "-", f"{nothing:.1f} s"),
    ]
    found += _flushes(home, commands)
    return found


def _flushes(home: Home, commands: Commands) -> list[Measured]:
    before = statistics.median([_flush(home, commands, start) for start in range(_ROUNDS)])
    names = [f"closed-{number}" for number in range(_CLOSED)]
    tombstones.create_tombstones(
        home, [Tombstone("session", name, f"hyp purge --session {name}") for name in names], _AT
    )
    after = statistics.median([_flush(home, commands, start) for start in range(_ROUNDS, 2 * _ROUNDS)])
    return [
        Measured(f"flush of {_FLUSHED:,} rows", "-", f"{before:.2f} s"),
        Measured(f"the same with {_CLOSED:,} sessions closed", "-", f"{after:.2f} s ({after / before:.2f} times)"),
    ]


def _flush(home: Home, commands: Commands, start: int) -> float:
    commands.run([sys.executable, "-m", "bench.append", str(home.root), str(_FLUSHED), str(start * _FLUSHED)])
    return seconds(lambda: commands.hyp("flush"))


def _files(home: Home) -> int:
    entry = metadata.find_table(home, _DATASET)
    assert entry is not None
    return sum(1 for _ in metadata.iter_live_files(metadata.read_metadata(entry.metadata)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--large", action="store_true", help="10 million rows")
    options.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the temporary home lies"
    )
    asked = options.parse_args()
    with temporary_home(asked.folder, "purge") as commands:
        for each in measure(commands, 10_000_000 if asked.large else asked.rows):
            print(each.line())


if __name__ == "__main__":
    main()
