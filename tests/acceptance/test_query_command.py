"""`hyp query sql` as a user runs it: formats, files, pipes, terminals, Ctrl-C."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.command import HYP, Hyp
from tests.support.processes import PATIENCE, eventually
from tests.support.rows import DATASET, rows

pytestmark = pytest.mark.spark

HOSTILE = "\x1b]0;owned\x07 \x1b[2J \u202e你好 | a\nb"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hyp]:
    hyp = Hyp(tmp_path_factory.mktemp("query") / "home")
    hyp.ingest([*rows(1200), *rows(1, start=5000, content_text=HOSTILE)])
    hyp.ok("flush")
    yield hyp
    hyp.run("engine", "stop")


def on_a_terminal(hyp: Hyp, *args: str, width: int = 60) -> tuple[int, str]:
    """Return the exit code and everything sent to a terminal of that width."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    kept = {name: value for name, value in hyp.environment().items() if name not in ("COLUMNS", "NO_COLOR")}
    started = subprocess.Popen(
        [HYP, *args], env={**kept, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    shown = bytearray()
    with open(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                shown += terminal.read(65536)
            except OSError:
                break
    return started.wait(), shown.decode()


def test_every_format_is_complete_in_a_pipe(lake: Hyp) -> None:
    sql = f"SELECT message_index AS n, content_text AS text FROM {DATASET} WHERE message_index = 5000"
    names = ("json", "jsonl", "csv", "markdown", "table")
    written = {name: lake.run("query", "sql", sql, "--format", name).out for name in names}

    assert json.loads(written["json"]) == [{"n": 5000, "text": HOSTILE}]
    assert json.loads(written["jsonl"]) == {"n": 5000, "text": HOSTILE}
    assert list(csv.reader(io.StringIO(written["csv"], newline=""))) == [["n", "text"], ["5000", HOSTILE]]
    for shown in (written["json"], written["markdown"], written["table"]):
        assert not any(char in shown for char in "\x1b\x07\u202e")


def test_a_pipe_gets_all_rows_without_a_limit(lake: Hyp) -> None:
    result = lake.run("query", "sql", f"SELECT message_index FROM {DATASET} ORDER BY 1")

    assert len(result.out.splitlines()) == 2 + 1201
    assert "1201 rows" in result.err


def test_max_rows_truncates_and_reports_it_on_stderr(lake: Hyp) -> None:
    result = lake.run("query", "sql", f"SELECT 1 AS x FROM {DATASET}", "--format", "jsonl", "--max-rows", "3")

    assert result.out == '{"x":1}\n' * 3
    assert "only the first 3 rows" in result.err


def test_the_sql_may_come_from_standard_input(lake: Hyp) -> None:
    result = lake.run("query", "sql", "-", "--json", stdin=f"SELECT count(*) AS n\n-- how many\nFROM {DATASET};\n")

    assert result.json == [{"n": 1201}]


def test_the_name_of_the_output_file_implies_the_format(lake: Hyp, tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    assert lake.run("query", "sql", "SELECT 1 AS a, 'x' AS b", "--output", str(target)).code == 0
    assert target.read_bytes() == b"a,b\r\n1,x\r\n"
    assert lake.run("query", "sql", "SELECT 1 AS a", "--format", "jsonl", "--output", str(target)).code == 0
    assert target.read_bytes() == b'{"a":1}\n'


def test_output_replaces_the_file_atomically_and_keeps_it_if_the_query_fails(lake: Hyp, tmp_path: Path) -> None:
    target = tmp_path / "rows.arrow"
    sql = f"SELECT message_index FROM {DATASET}"

    assert lake.run("query", "sql", sql, "--format", "arrow", "--output", str(target)).out == ""
    with pa.ipc.open_stream(target.read_bytes()) as reader:
        assert reader.read_all().num_rows == 1201
    before = target.read_bytes()
    failed = lake.run("query", "sql", f"SELECT CAST(content_text AS INT) FROM {DATASET}", "--output", str(target))
    assert failed.code == 1
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_with_json_is_one_json_document(lake: Hyp) -> None:
    for sql, kind in [
        (f"DROP TABLE {DATASET}", "query_refused"),
        (f"SELECT rol FROM {DATASET}", "query_invalid"),
        (f"SELECT IF(message_index < 1100, 1, CAST(content_text AS INT)) FROM {DATASET}", "query_failed"),
    ]:
        result = lake.run("query", "sql", sql, "--json")
        assert (result.code, result.json["error"]["kind"]) == (1, kind)


def test_a_closed_pipe_ends_the_query_quietly(lake: Hyp) -> None:
    endless = lake.start("query", "sql", "SELECT id FROM range(3000000)", "--format", "jsonl")
    with endless:
        assert endless.stdout is not None
        assert endless.stderr is not None
        assert endless.stdout.readline() == b'{"id":0}\n'
        endless.stdout.close()
        assert b"rror" not in endless.stderr.read()

    eventually(lambda: lake.ok("engine", "status")["jobs"] == [])
    assert lake.query("SELECT 1 AS x") == [{"x": 1}]


def test_ctrl_c_ends_the_query_and_leaves_the_engine_usable(lake: Hyp) -> None:
    endless = (
        f"SELECT count(DISTINCT x, part_id) FROM {DATASET} "
        "LATERAL VIEW explode(sequence(1, 1000000)) e AS x LATERAL VIEW explode(sequence(1, 1000)) f AS y"
    )
    running = lake.start("query", "sql", endless)
    eventually(lambda: [job["job"] for job in lake.ok("engine", "status")["jobs"]] == ["query"])
    running.send_signal(signal.SIGINT)

    out, _ = running.communicate(timeout=PATIENCE)
    assert (running.returncode, out) == (130, b"")
    eventually(lambda: lake.ok("engine", "status")["jobs"] == [])
    assert lake.query("SELECT 1 AS x") == [{"x": 1}]


@pytest.mark.hazard(62)
def test_a_terminal_gets_a_table_that_fits_without_control_characters_from_the_data(lake: Hyp) -> None:
    for name in ("table", "markdown", "csv", "json", "jsonl"):
        code, shown = on_a_terminal(
            lake, "query", "sql", f"SELECT content_text, model AS m FROM {DATASET} ORDER BY message_index DESC",
            "--format", name, "--refresh", "never",
        )  # fmt: skip
        assert code == 0
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
        if name in ("table", "markdown"):
            assert "only the first 1000 rows are shown" in shown
    code, shown = on_a_terminal(lake, "query", "sql", f"SELECT repeat(role, 100) AS r, 1 AS n FROM {DATASET} LIMIT 3")
    lines = shown.splitlines()
    assert lines[2].endswith("…  1")
    assert max(map(len, lines)) == 60


def test_binary_formats_are_not_sent_to_a_terminal(lake: Hyp) -> None:
    code, shown = on_a_terminal(lake, "query", "sql", "SELECT 1", "--format", "arrow")

    assert code == 2
    assert "--output" in shown
