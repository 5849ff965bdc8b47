"""`hyp show` and `hyp tail`: their formats, their pager, their files, and what they say to a wrong id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import Home
from tests.support.command import HYP, Hyp
from tests.support.index_home import make_home, prompt, response
from tests.support.light_home import append
from tests.support.processes import PATIENCE
from tests.support.pseudo_terminal import PseudoTerminal
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
SECRET = "ghp_" + "a1B2" * 9
FIRST, SECOND = "0dc91b82-aaaa-4907", "0dc91b82-bbbb-4907"


def rows() -> list[dict[str, Any]]:
    tool = {"part_type": "tool_call", "tool_name": "Bash", "tool_call_id": "c1", "tool_args": {"command": "make test"}}
    result = {"part_type": "tool_result", "tool_name": "Bash", "tool_call_id": "c1", "tool_result_for": "c1"}
    return [
        prompt(1, f"Use {SECRET} \x1b[2J", at="2026-11-14T08:00:00Z", session_id=FIRST),
        response(2, at="2026-11-14T08:00:01Z", session_id=FIRST, usage={"output_tokens": 1000}, **tool),
        prompt(3, "ok", at="2026-11-14T08:00:02Z", session_id=FIRST, **result),
        prompt(4, "Another one", at="2026-11-15T08:00:00Z", session_id=SECOND),
    ]


@pytest.fixture
def recorded(home: Home) -> Home:
    return make_home(home.root, *rows())


def test_a_session_is_shown_by_the_beginning_of_its_id(hyp: Run, recorded: Home) -> None:
    code, out, err = hyp("show", "0dc91b82-a", "--timezone", "UTC")

    assert (code, err) == (0, "")
    assert "› You  2026-11-14 08:00:00\n" in out
    assert "  Bash make test\n  └ ok\n" in out
    assert "\\x1b[2J" in out
    assert "\x1b" not in out
    assert out.endswith(f"resume: cd /home/dev/web && claude --resume {FIRST}\n")


def test_an_index_without_text_is_the_reason_for_empty_messages(hyp: Run, recorded: Home) -> None:
    (recorded.root / "config.toml").write_text("version = 1\n[index]\ntext = false\n")

    code, out, err = hyp("show", SECOND, "--timezone", "UTC")

    assert (code, err) == (0, "the index holds no text, because index.text is false in the config\n")
    assert "› You  2026-11-15 08:00:00\n" in out
    assert "Another one" not in out


def test_the_newest_session_is_the_last_one(hyp: Run, recorded: Home) -> None:
    assert "Another one" in hyp("show", "--last")[1]
    assert "make test" in hyp("show", "--last", "--until", "2026-11-14")[1]


@pytest.mark.parametrize("args", [("--json",), ("--format", "json")])
def test_json_has_the_documented_shape(hyp: Run, recorded: Home, args: tuple[str, ...]) -> None:
    code, out, _ = hyp("show", FIRST, *args)

    found = json.loads(out)
    assert code == 0
    assert found["session"]["session_id"] == FIRST
    assert found["session"]["tokens"]["output"] == 1000
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "user"]
    message = found["messages"][1]
    assert {"message_id", "index", "at", "role", "model", "parent", "parts", "tokens", "cost_usd"} <= message.keys()
    assert message["parts"] == [
        {
            "part_id": "message-2#0",
            "type": "tool_call",
            "text": "text of message 2",
            "tool_name": "Bash",
            "tool_call_id": "c1",
            "tool_args": {"command": "make test"},
            "tool_result_for": None,
            "is_error": False,
            "is_typed": False,
        }
    ]
    assert message["tokens"] == {"input": 0, "output": 1000, "cache_read": 0, "cache_write": 0, "reasoning": 0}
    assert message["cost_usd"] == pytest.approx(found["session"]["cost_usd"])
    assert [thread["is_sidechain"] for thread in found["threads"]] == [False]
    assert "\x1b" not in out


def test_python_gets_the_same_document(hyp: Run, recorded: Home) -> None:
    from hypaware.api import open_lake

    assert open_lake(recorded.root).show("0dc91b82-a") == json.loads(hyp("show", FIRST, "--json")[1])


def test_secrets_are_redacted_in_every_format(hyp: Run, recorded: Home) -> None:
    for format_ in ("text", "markdown", "html", "json"):
        code, out, err = hyp("show", FIRST, "--redact", "--format", format_)
        assert (code, err) == (0, "1 secret redacted\n")
        assert SECRET not in out
        assert "Use [" in out
    assert not (recorded.root / "redaction.key").exists()


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.html", "<!DOCTYPE html>"), ("a.md", "# Use"), ("a.json", '{\n"session"'), ("a.txt", "Use"), ("a", "Use")],
)
def test_the_name_of_the_file_implies_its_format(
    hyp: Run, recorded: Home, tmp_path: Path, name: str, start: str
) -> None:
    target = tmp_path / name

    assert hyp("show", FIRST, "-o", str(target)) == (0, "", f"written to {target}\n")
    assert target.read_text(encoding="utf-8").startswith(start)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


def test_a_file_that_cannot_be_written_is_left_alone(hyp: Run, recorded: Home, tmp_path: Path) -> None:
    folder = tmp_path / "folder.html"
    folder.mkdir()

    assert hyp("show", FIRST, "-o", str(folder))[0] == 2
    assert hyp("show", FIRST, "-o", str(tmp_path / "missing" / "a.html"))[0] == 2
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "name either the id of a session or --last"),
        ((FIRST, "--last"), 2, "name either the id of a session or --last"),
        ((FIRST, "--project", "web"), 2, "need --last"),
        ((FIRST, "--follow", "-o", "x.html"), 2, "--follow"),
        ((FIRST, "--follow", "--format", "html"), 2, "--follow"),
        (("0dc91b82",), 1, f"\n  {FIRST}  "),
        (("0dc91b82",), 1, f"\n  {SECOND}  "),
        (("0dc91b83",), 1, f"Did you mean {FIRST}?"),
        (("--last", "--client", "codex"), 1, "no recorded session has the client codex. Known: claude."),
        (("--last", "--since", "2030-01-01"), 1, "no recorded session matches all of the filters"),
    ],
)
def test_a_wrong_call_is_explained(hyp: Run, recorded: Home, args: tuple[str, ...], code: int, message: str) -> None:
    found, out, err = hyp("show", *args)

    assert (found, out) == (code, "")
    assert message in err


@pytest.mark.parametrize("command", [("show", "--last"), ("tail",)])
def test_without_a_home_nothing_is_created(hyp: Run, home: Home, command: tuple[str, ...]) -> None:
    code, _, err = hyp(*command)

    assert code == 3
    assert "hyp setup" in err
    assert not home.root.exists()


@pytest.mark.parametrize(
    ("args", "code", "kind"), [(("zzz",), 1, "unknown_session"), ((FIRST, "--format", "html"), 2, "usage")]
)
def test_with_json_the_error_is_json(hyp: Run, recorded: Home, args: tuple[str, ...], code: int, kind: str) -> None:
    found, out, _ = hyp("show", *args, "--json")

    assert found == code
    assert json.loads(out)["error"]["kind"] == kind


def environment(home: Home, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PAGER", "LESS", "NO_COLOR")}
    return {**kept, "HYP_HOME": str(home.root), "LANG": "C.UTF-8", "TZ": "UTC", **more}


def test_on_a_terminal_the_pager_gets_the_coloured_text(recorded: Home, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    pager = f"tee {copy}; echo $LESS"

    with PseudoTerminal([str(HYP), "show", FIRST], environment(recorded, PAGER=pager)) as terminal:
        terminal.expect("resume:")
        terminal.expect("FRX")
        assert terminal.end() == 0

    assert "\x1b[1;36m› You\x1b[0m" in copy.read_text(encoding="utf-8")


def test_options_of_the_users_less_are_kept(recorded: Home) -> None:
    given = environment(recorded, PAGER="cat >/dev/null; echo options: $LESS.", LESS="-S")

    with PseudoTerminal([str(HYP), "show", FIRST], given) as terminal:
        terminal.expect("options: -S -R.")
        assert terminal.end() == 0


def test_a_pager_that_ends_early_ends_the_command(home: Home) -> None:
    many = [prompt(number, f"Prompt {number} " * 200, at="2026-11-14T08:00:00Z") for number in range(500)]
    make_home(home.root, *many)

    with PseudoTerminal([str(HYP), "show", "session-1"], environment(home, PAGER="head -1; echo the end")) as terminal:
        terminal.expect("the end")
        assert terminal.end() == 0


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(recorded: Home, tmp_path: Path, variables: dict[str, str]) -> None:
    copy = tmp_path / "copy"
    command = ["env", *(f"{name}={value}" for name, value in variables.items()), str(HYP), "show", FIRST]

    with PseudoTerminal(command, environment(recorded, PAGER=f"tee {copy}")) as terminal:
        assert terminal.end() == 0

    assert "\x1b" not in copy.read_text(encoding="utf-8")


@pytest.fixture
def watch(recorded: Home) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str) -> subprocess.Popen[bytes]:
        started.append(Hyp(recorded.root).start(*args))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[bytes], text: str) -> str:
    """Read lines until one contains the text; the test's timeout is the limit."""
    assert process.stdout is not None
    found = ""
    for line in process.stdout:
        found += line.decode()
        if text in found:
            return found
    raise AssertionError(f"{text!r} did not come: {found}")


def test_tail_shows_the_last_parts_and_then_new_ones_until_ctrl_c(
    recorded: Home, watch: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = watch("tail", "-n", "1")
    begin = read_until(process, "  Another one")
    append(recorded, [response(7, at="2026-01-01T00:00:00Z", session_id=FIRST, content_text="news \x1b[31m")])

    news = read_until(process, "news")
    process.send_signal(signal.SIGINT)

    assert "make test" not in begin
    assert f"claude · {FIRST}" in news
    assert "\x1b" not in news
    assert process.wait(PATIENCE) == 0


def test_tail_prints_one_json_document_per_line(recorded: Home, watch: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = watch("tail", FIRST, "--json", "-n", "2", "--redact")
    begin = read_until(process, '"ok"')
    append(recorded, [response(8, at="2026-11-14T09:00:00Z", session_id=SECOND)])
    append(recorded, [prompt(9, f"again {SECRET}", at="2026-11-14T09:00:00Z", session_id=FIRST)])

    news = read_until(process, "again")
    process.send_signal(signal.SIGINT)

    documents = [json.loads(line) for line in (begin + news).splitlines()]
    assert [each["message_id"] for each in documents] == ["message-2", "message-3", "message-9"]
    assert {each["session_id"] for each in documents} == {FIRST}
    assert SECRET not in news
    assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_show_follows_a_session(recorded: Home, watch: Callable[..., subprocess.Popen[bytes]], as_json: bool) -> None:
    process = watch("show", FIRST, "--follow", *(["--json"] if as_json else []))
    begin = read_until(process, '"ok"' if as_json else "└ ok")
    append(recorded, [response(9, at="2026-11-14T09:00:00Z", session_id=FIRST, content_text="and on")])
    news = read_until(process, "and on")
    process.send_signal(signal.SIGINT)

    assert "make test" in begin
    assert "make test" not in news
    assert process.wait(PATIENCE) == 0


def test_tail_ends_when_its_reader_is_gone(
    watch: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = watch("tail")
    read_until(process, "Another one")
    assert process.stdout is not None
    process.stdout.close()

    # As for every command: 1 if it was writing, otherwise it just ends.
    assert process.wait(PATIENCE) in (0, 1)


def test_show_imports_no_arrow_if_nothing_is_new(recorded: Home, hyp: Run) -> None:
    hyp("show", "--last")
    script = (
        "import sys\nfrom hypaware.cli import entry\ncode = entry.run(['show', '--last'])\n"
        "print(code, sorted({'pyarrow', 'pyspark', 'markdown_it', 'rich.console'} & set(sys.modules)), file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stderr == "0 []\n"
