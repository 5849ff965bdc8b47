"""What a failing command prints and returns, tested with commands that fail on purpose."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest

from hypaware.cli import entry, output
from hypaware.cli.command import Command, Group, json_option
from hypaware.cli.output import PartialFailure
from hypaware.errors import Cancelled, HypError, NotReady, UsageError
from hypaware.home import Home

ERRORS: dict[str, BaseException] = {
    "failed": HypError("the disk is full", kind="disk_full", repair=["hyp maintain", "hyp purge"]),
    "usage": UsageError("since is after until"),
    "not-ready": NotReady("the jars are missing", repair="hyp engine install"),
    "cancelled": Cancelled(),
    "interrupt": KeyboardInterrupt(),
    "unexpected": ValueError("an odd value\nwith a second line"),
    "full": OSError(errno.ENOSPC, "No space left on device", "/home/x/config.toml"),
    "read-only": OSError(errno.EROFS, "Read-only file system", "/home/me/.hyp/config.toml"),
    "pipe": BrokenPipeError(32, "the engine went away"),
    "partly": PartialFailure("1 row was refused", {"accepted": 2, "rejected": [3]}, kind="rows_rejected"),
}


@click.group("hyp", cls=Group, examples=["hyp boom failed"])
def root() -> None:
    """Use commands for tests."""


@root.command("boom", examples=["hyp boom failed"])
@click.argument("how", type=click.Choice(list(ERRORS)))
@json_option
def boom(how: str) -> None:
    """Fail."""
    raise ERRORS[how]


@root.command("late", examples=["hyp late"])
@json_option
def late() -> None:
    """Fail after the result was printed."""
    output.emit_json({"ok": True})
    raise HypError("too late")


@root.command("unhealthy", examples=["hyp unhealthy"])
@json_option
def unhealthy() -> int:
    """Print a negative result."""
    output.emit_json({"ok": False})
    return 1


Capture = pytest.CaptureFixture[str]


def run(capfd: Capture, *args: str) -> tuple[int, str, str]:
    code = entry.run(args, root)
    out, err = capfd.readouterr()
    return code, out, err


def one_document(text: str) -> Any:
    return json.loads(text)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("failed", 1),
        ("usage", 2),
        ("not-ready", 3),
        ("cancelled", 130),
        ("interrupt", 130),
        ("unexpected", 1),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(capfd: Capture, how: str, code: int) -> None:
    assert run(capfd, "boom", how)[0] == code


def test_an_error_prints_the_message_and_the_repair_on_stderr(capfd: Capture) -> None:
    _, out, err = run(capfd, "boom", "failed")

    assert out == ""
    assert err == "error: the disk is full\ntry: hyp maintain\ntry: hyp purge\n"


def test_with_json_an_error_is_the_only_document_on_stdout(capfd: Capture) -> None:
    _, out, err = run(capfd, "boom", "failed", "--json")

    assert one_document(out) == {
        "error": {"kind": "disk_full", "message": "the disk is full", "repair": ["hyp maintain", "hyp purge"]}
    }
    assert err == ""


def test_a_full_disk_is_reported_as_such_in_every_step(capfd: Capture) -> None:
    code, _, err = run(capfd, "boom", "full")
    assert (code, err) == (1, "error: the disk is full: cannot write /home/x/config.toml\ntry: hyp status\n")


def test_a_misplaced_json_option_is_reported_as_json(capfd: Capture) -> None:
    for args in (("--json",), ("--json", "boom", "failed")):
        code, out, err = run(capfd, *args)
        assert (code, one_document(out)["error"]["kind"], err) == (2, "usage", "")


def test_permission_errors_are_not_reported_as_internal_errors(capfd: Capture) -> None:
    code, out, _ = run(capfd, "boom", "read-only", "--json")
    assert code == 1
    assert one_document(out)["error"] == {
        "kind": "file_unavailable",
        "message": "/home/me/.hyp/config.toml: Read-only file system",
        "repair": ["hyp doctor"],
    }


def test_an_error_without_a_repair_has_no_repair_key(capfd: Capture) -> None:
    assert "repair" not in one_document(run(capfd, "boom", "usage", "--json")[1])["error"]


@pytest.mark.parametrize("how", ["cancelled", "interrupt"])
def test_a_cancelled_command_reports_it(capfd: Capture, how: str) -> None:
    assert run(capfd, "boom", how)[1:] == ("", "cancelled\n")
    assert one_document(run(capfd, "boom", how, "--json")[1])["error"]["kind"] == "cancelled"


def test_a_partial_failure_includes_the_report_of_the_rest(capfd: Capture) -> None:
    code, out, _ = run(capfd, "boom", "partly", "--json")

    assert code == 1
    assert one_document(out) == {
        "accepted": 2,
        "rejected": [3],
        "error": {"kind": "rows_rejected", "message": "1 row was refused"},
    }


def test_an_error_after_the_result_adds_no_second_document(capfd: Capture) -> None:
    code, out, err = run(capfd, "late", "--json")

    assert code == 1
    assert one_document(out) == {"ok": True}
    assert err == "error: too late\n"


def test_a_command_can_print_a_result_and_exit_1(capfd: Capture) -> None:
    assert run(capfd, "unhealthy", "--json")[0] == 1


@pytest.mark.parametrize(
    ("args", "said", "help_of"),
    [
        (["boom"], "Missing argument", "hyp boom"),
        (["boom", "failed", "--jso"], "--jso", "hyp boom"),
        (["boom", "nonsense"], "nonsense", "hyp boom"),
        (["bom"], "Did you mean boom?", "hyp"),
        (["--nonsense"], "--nonsense", "hyp"),
        (["boom", "failed", "more"], "more", "hyp boom"),
    ],
)
def test_wrong_usage_exits_2_and_suggests_the_help(capfd: Capture, args: list[str], said: str, help_of: str) -> None:
    code, out, err = run(capfd, *args)

    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("error: ")
    assert f"try: {help_of} --help\n" in err

    code, out, err = run(capfd, *args, "--json")
    error = one_document(out)["error"]
    assert (code, error["kind"], error["repair"], err) == (2, "usage", [f"{help_of} --help"], "")


def test_json_after_a_double_dash_is_an_argument(capfd: Capture) -> None:
    code, out, err = run(capfd, "boom", "--", "--json")

    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_a_command_prefix_is_not_a_command(capfd: Capture) -> None:
    assert run(capfd, "boo", "failed")[0] == 2


def test_a_group_without_a_subcommand_shows_its_help_and_exits_2(capfd: Capture) -> None:
    code, out, err = run(capfd)

    assert (code, out) == (2, "")
    assert "Usage: hyp" in err


def test_an_unexpected_error_is_one_line_and_its_traceback_is_in_the_log(capfd: Capture, home: Home) -> None:
    home.root.mkdir()

    code, _, err = run(capfd, "boom", "unexpected")

    log = home.logs / "cli.log"
    assert code == 1
    assert err == f"error: unexpected ValueError: an odd value (details in {log})\n"
    assert "Traceback" in log.read_text()
    assert "with a second line" in log.read_text()
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_an_unexpected_error_creates_no_home(capfd: Capture, home: Home) -> None:
    _, out, _ = run(capfd, "boom", "unexpected", "--json")

    assert one_document(out)["error"]["kind"] == "internal"
    assert "HYP_DEBUG=1" in one_document(out)["error"]["message"]
    assert not home.root.exists()


def test_with_hyp_debug_the_traceback_is_on_stderr(capfd: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYP_DEBUG", "1")

    assert "Traceback" in run(capfd, "boom", "unexpected")[2]


def test_the_log_of_unexpected_errors_is_rotated(capfd: Capture, home: Home) -> None:
    home.logs.mkdir(parents=True)
    (home.logs / "cli.log").write_bytes(b"x" * (2 << 20))

    run(capfd, "boom", "unexpected")

    assert (home.logs / "cli.log").stat().st_size < 100_000
    assert (home.logs / "cli.log.1").stat().st_size == 2 << 20


def test_a_broken_pipe_that_is_not_ours_is_an_error(capfd: Capture) -> None:
    """A dead engine must not look like a closed output pipe."""
    code, _, err = run(capfd, "boom", "pipe")

    assert code == 1
    assert "BrokenPipeError" in err


SCRIPT = textwrap.dedent(
    """
    import sys, click
    from hypaware.cli.command import Group
    from hypaware.cli import output
    from hypaware.cli import entry



    @click.group("hyp", cls=Group, examples=["x"])
    def root(): pass

    @root.command("endless", examples=["x"])
    def endless():
        while True:
            output.emit("a line of a long answer")

    @root.command("both", examples=["x"])
    def both():
        output.emit("not yet flushed")
        output.note("beside it")

    @root.command("wait", examples=["x"])
    def wait():
        output.note("waiting")
        sys.stdin.read()

    sys.exit(entry.run(None, root))
"""
)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path)]


def test_a_closed_output_pipe_ends_the_command_quietly(script: list[str]) -> None:
    process = subprocess.Popen([*script, "endless"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()

    assert process.wait() == 1
    assert process.stderr.read() == b""
    process.stderr.close()


def test_help_into_a_closed_pipe_is_quiet(script: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run([*script, "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)

    assert (done.returncode, done.stderr) == (1, b"")


def test_closed_stdout_and_stderr_cause_no_error_at_exit(script: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run([*script, "both"], stdout=writer, stderr=writer)
    os.close(writer)

    assert done.returncode == 1


def test_ctrl_c_exits_130(script: list[str]) -> None:
    with subprocess.Popen([*script, "wait"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert process.stderr.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)

        assert process.wait() == 130
        assert process.stderr.read() == "cancelled\n"


def test_a_command_without_an_example_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="examples"):
        Command("silent")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "command",
    ["query sql SELECT\t1", "query overview", "overview", "sessions", "usage"],
    ids=["query", "query-overview", "overview", "sessions", "usage"],
)
def test_a_command_that_reads_creates_no_home_at_a_mistyped_path(capfd: Capture, home: Home, command: str) -> None:
    code = entry.run([word.replace("\t", " ") for word in command.split(" ")])

    assert code == 3
    assert capfd.readouterr().err == f"error: no home at {home.root}\ntry: hyp setup\n"
    assert not home.root.exists()
