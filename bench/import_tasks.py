"""Compare the CPU of the import's tasks with that of its floor.

    python -m bench.import_tasks FOLDER [--turns 5] [--profile]

FOLDER holds a history of `bench.transcripts`. Its sources are read by tasks as in Spark's workers, but in this process,
without driver, commit and fsync of metadata. Tasks and floor take turns, because the speed of a machine varies.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

from bench import floor, transcripts
from hypaware.backfill.batches import group_by_size
from hypaware.backfill.source_rows import ImportContext, SourcePiece, SourceTask, load_registries
from hypaware.clients.reader import SourceSnapshot, get_inode
from hypaware.lake.build import BuildSettings
from hypaware.lake.schema import table_columns
from hypaware.model.schemas import AI_GATEWAY_MESSAGES

_TASK_BYTES = 16 << 20
_SHOWN = 45


def pin_sources(folder: Path, context: ImportContext) -> list[SourcePiece]:
    pieces, first = [], 1
    for path in floor.in_order(folder):
        status = path.stat()
        snapshot = SourceSnapshot(path, get_inode(status), status.st_size, status.st_mtime_ns)
        pieces.append(SourcePiece(context, first, status.st_size, snapshot))
        first += status.st_size
    return pieces


def run_tasks(pieces: list[SourcePiece], out: Path) -> int:
    ids = {column.name: at for at, column in enumerate(table_columns(AI_GATEWAY_MESSAGES), start=1)}
    settings = BuildSettings(AI_GATEWAY_MESSAGES.name, floor.FLUSH_ID, out, ids, own_gateway=floor.GATEWAY_ID)
    tasks = [SourceTask(settings, group) for group in group_by_size(pieces, repeat(_TASK_BYTES))]
    return sum(file.rows for task in tasks for file in task.run().files)


def cpu_seconds(work: Callable[[Path], int], rows: int) -> float:
    with tempfile.TemporaryDirectory(prefix="import-tasks-") as out:
        gc.collect()
        began = time.process_time()
        found = work(Path(out))
        spent = time.process_time() - began
    if found != rows:
        raise SystemExit(f"{rows} rows are there and {found} were found: not a measurement")
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares the CPU of the import's tasks with the floor's.")
    parser.add_argument("folder", type=Path, help="a history of bench.transcripts")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print where the tasks spend their time instead")
    args = parser.parse_args()
    if (history := transcripts.load(args.folder)) is None:
        sys.exit(f"{args.folder} holds no history; run python -m bench.transcripts {args.folder} --scale 0.04")
    load_registries()
    environment = {"HOME": str(args.folder), "CLAUDE_CONFIG_DIR": str(args.folder)}
    context = ImportContext("claude", AI_GATEWAY_MESSAGES.name, environment, floor.GATEWAY_ID)
    pieces = pin_sources(args.folder, context)
    gc.disable()
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(cpu_seconds, lambda out: run_tasks(pieces, out), history.rows)
        pstats.Stats(profile).sort_stats("tottime").print_stats(_SHOWN)
        return
    turns = []
    for _ in range(args.turns):
        least = cpu_seconds(lambda out: floor.write(args.folder, out), history.rows)
        turns.append((cpu_seconds(lambda out: run_tasks(pieces, out), history.rows), least))
    tasks, floors = zip(*turns, strict=True)
    print("tasks", *(f"{each:.3f}" for each in tasks), "floor", *(f"{each:.3f}" for each in floors))
    print(
        f"{history.rows:,} rows; CPU of the tasks {min(tasks):.3f} s, of the floor {min(floors):.3f} s, least of "
        f"{args.turns}: {min(tasks) / min(floors):.2f} times; median of the turns' ratios "
        f"{statistics.median(task / least for task, least in turns):.2f}"
    )


if __name__ == "__main__":
    main()
