"""Append rows in one process: `python -m bench.append HOME ROWS START`.

Prints its speed, its floor and its memory as JSON. The floor is the minimum cost of an acknowledged batch:
orjson, one write, one fsync.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path

import orjson

from bench.rows import batches
from hypaware.spool.writer import Spool

DATASET = "ai_gateway_messages"


def main(home: Path, rows: int, start: int) -> None:
    print(
        json.dumps(
            {"rows": rows, "append": append(home, rows, start), "mb": peak_mb(), "floor": floor(home, rows, start)}
        )
    )


def append(home: Path, rows: int, start: int) -> float:
    spent = 0.0
    with Spool(home) as spool:
        for batch in batches(rows, start):
            began = time.perf_counter()
            spool.append(DATASET, batch)
            spent += time.perf_counter() - began
    return spent


def floor(home: Path, rows: int, start: int) -> float:
    path = home.with_name("floor.jsonl")
    spent = 0.0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for batch in batches(rows, start):
            began = time.perf_counter()
            os.write(fd, b"".join(orjson.dumps(row) + b"\n" for row in batch))
            os.fsync(fd)
            spent += time.perf_counter() - began
    finally:
        os.close(fd)
        path.unlink()
    return spent


def peak_mb() -> float:
    """Return the peak memory of this process. Linux reports KiB, macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
