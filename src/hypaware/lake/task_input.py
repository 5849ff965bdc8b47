"""The input of tasks on a cluster, whose machines cannot read the files of this one.

On `local[*]`, tasks read segments and sources where they are. On a cluster, the driver reads their pinned bytes and
sends them as Spark broadcasts: blocks that an executor fetches when it runs the task, over Spark's own connections,
with the secret and encryption of the cluster. A broadcast holds at most PIECE_BYTES: many small inputs share one, and
a large input takes several. The driver keeps a piece in memory only while it reads it, and sends the input of a task
only when it is about to run. An executor writes them to a folder of its own, which is removed with the task.

Each task is a Spark job, because Spark sends the broadcasts of a job to all of its tasks. A task that must know more
about the home's machine asks (`home.machine_facts`): it is run again with the answers, which later tasks get
immediately.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hypaware.home.machine_facts import Question, Unanswered, only_known
from hypaware.lake.build import BuildFailure, BuildResult, Task, count_done, run_catching

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

PIECE_BYTES = 8 << 20
# An answer can lead to further questions, such as a folder that only a client's note names.
_MAX_ROUNDS = 5


class TaskInput(Protocol):
    def read_bytes(self) -> Iterator[bytes]:
        """Read the input on the driver's machine, a block at a time."""


@runtime_checkable
class InputTask(Protocol):
    """A task that reads files of the driver's machine."""

    @property
    def inputs(self) -> Sequence[TaskInput]: ...

    def with_copies(self, copies: Sequence[Path | Exception]) -> Task:
        """Return the task that reads these copies instead, or the error with which the driver could not read one."""


@dataclass(frozen=True)
class PackedInput:
    size: int
    error: Exception | None = None
    """What happened after so many bytes."""


def run_tasks(
    spark: SparkContext, tasks: Sequence[InputTask], answers: dict[Question, Any], counts: Sequence[Any]
) -> list[BuildResult | BuildFailure | Exception]:
    """Run the tasks, and return the result of each or the error of its Spark job. `answers` is extended."""
    from pyspark import inheritable_thread_target

    def run(task: InputTask) -> BuildResult | BuildFailure | Exception:
        try:
            return _run_task(spark, task, answers, counts)
        except Exception as error:
            return error

    # One more than can run, so that the input of the next task is ready when one ends.
    with ThreadPoolExecutor(spark.defaultParallelism + 1, "task-input") as threads:
        # Threads of their own take over the job group, by which the job is cancelled.
        return list(threads.map(inheritable_thread_target(run), tasks))


def _run_task(
    spark: SparkContext, task: InputTask, answers: dict[Question, Any], counts: Sequence[Any]
) -> BuildResult | BuildFailure:
    with ExitStack() as held:
        packed: list[PackedInput] = []
        pieces = []
        for piece in pack_inputs(task.inputs, packed):
            pieces.append(broadcast := spark.broadcast(piece))
            held.callback(broadcast.destroy)
        for _ in range(_MAX_ROUNDS):
            work = partial(run_copied, packed=tuple(packed), pieces=pieces, counts=counts)
            (found,) = spark.parallelize([(task, dict(answers))], 1).map(work).collect()
            if not isinstance(found, Unanswered):
                result: BuildResult | BuildFailure = found
                return result
            answers.update({question: answer() for question, answer in found.questions.items()})
    return BuildFailure(f"a task still has questions after {_MAX_ROUNDS} rounds: {found}")


def pack_inputs(inputs: Sequence[TaskInput], packed: list[PackedInput]) -> Iterator[bytes]:
    """Yield the bytes of all inputs in pieces of PIECE_BYTES, and add the size of each input to `packed`."""
    buffer = bytearray()
    for each in inputs:
        size, error = 0, None
        try:
            for block in each.read_bytes():
                size += len(block)
                buffer += block
                while len(buffer) >= PIECE_BYTES:
                    yield bytes(buffer[:PIECE_BYTES])
                    del buffer[:PIECE_BYTES]
        except Exception as reason:
            # The task reports it, as if it had read the input itself.
            error = reason
        packed.append(PackedInput(size, error))
    if buffer:
        yield bytes(buffer)


def run_copied(
    given: tuple[InputTask, Mapping[Question, Any]],
    packed: Sequence[PackedInput],
    pieces: Sequence[Broadcast[bytes]],
    counts: Sequence[Any] = (),
) -> BuildResult | BuildFailure | Unanswered:
    """Run a task in an executor, on copies of its inputs."""
    task, answers = given
    try:
        with copied_inputs(packed, map(_take, pieces)) as copies:
            result: BuildResult | BuildFailure = BuildResult()
            try:
                with only_known(answers):
                    result = run_catching(task.with_copies(copies))
            except Unanswered as asked:
                if isinstance(result, BuildResult):
                    for file in result.files:
                        file.path.unlink(missing_ok=True)
                return asked
    except OSError as error:
        return BuildFailure(f"the executor on {socket.gethostname()}: {error}", is_environmental=True)
    if isinstance(result, BuildResult):
        count_done(task, result, counts)
    return result


def _take(piece: Broadcast[bytes]) -> bytes:
    """Return the bytes of a piece. The worker must not keep a copy."""
    data: bytes = piece.value
    vars(piece).pop("_value", None)
    return data


@contextmanager
def copied_inputs(packed: Sequence[PackedInput], pieces: Iterable[bytes]) -> Iterator[list[Path | Exception]]:
    """Write the inputs to files of a temporary folder."""
    # Where Spark keeps its own temporary files.
    place = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    with tempfile.TemporaryDirectory(prefix="hyp-input-", dir=place) as folder:
        stream, buffer = iter(pieces), memoryview(b"")
        copies: list[Path | Exception] = []
        for number, each in enumerate(packed):
            path, missing = Path(folder) / str(number), each.size
            with open(path, "wb") as file:
                while missing:
                    buffer = buffer or memoryview(next(stream))
                    written = file.write(buffer[:missing])
                    buffer, missing = buffer[written:], missing - written
            copies.append(each.error or path)
        yield copies
