"""The commands `hyp status` and `hyp doctor`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from hypaware import status
from hypaware.cli import entry
from hypaware.cli.main import hyp as root
from hypaware.cli.status import StatusStyle, render_status
from hypaware.home import Home
from hypaware.status.snapshot import collect_snapshot
from tests.support.delivery_home import DeliveryHome, key
from tests.support.light_home import append
from tests.support.rows import rows
from tests.support.status_home import StatusHome

Ran = tuple[int, str, str]
NOW = datetime.now(UTC)
NAMED = re.compile(r'f?"(?:HYP_HOME=<a new folder> )?hyp ([a-z][a-z -]*)')


@pytest.fixture
def hyp(at: StatusHome, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process with the home's environment; return exit code, stdout and stderr."""
    for name, value in {**at.environment, "HYP_CACHE": str(at.cache)}.items():
        monkeypatch.setenv(name, value)
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: str) -> Ran:
        capfd.readouterr()
        code = entry.run(args)
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_status_check_fails_unless_everything_is_ok(at: StatusHome, hyp: Callable[..., Ran]) -> None:
    assert hyp("status", "--check")[0] == 1
    assert hyp("status")[0] == 0
    assert not at.home.root.exists()
    at.with_rows(3)
    code, out, err = hyp("status", "--check", "--json")
    assert (code, json.loads(out)["overall"], err) == (0, "ok", "")
    at.write_config("[oops]\n")
    code, out, err = hyp("status", "--check", "--json")
    document = json.loads(out)
    assert (code, document["error"]["kind"], err) == (1, document["overall"], "")
    assert "oops" in document["error"]["message"]
    assert hyp("status", "--check")[0] == 1
    assert "error" not in json.loads(hyp("status", "--json")[1])


def test_status_page_is_short_and_names_the_repair(at: StatusHome, hyp: Callable[..., Ran]) -> None:
    at.with_rows(20).with_client()
    append(at.home, rows(3, start=100))
    deliveries = DeliveryHome(at.home)
    deliveries.declare(archive="/nowhere/a")
    deliveries.delivered(key("archive"), 5)
    code, out, err = hyp("status")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"down: nothing is recorded automatically ({at.home.root})"
    assert len(lines) <= 20
    assert "20 rows from 2026-11-15" in out
    assert "3 rows in the spool" in out
    assert "archive: 0 rows" in out
    assert "15 rows pending" in out
    assert "  hyp daemon start" in out
    assert "\x1b" not in out


def _document(at: StatusHome) -> dict[str, Any]:
    return collect_snapshot(at.home, at.environment, NOW, at.cache).as_json()


def test_status_page_uses_colours_and_fits_the_terminal(at: StatusHome) -> None:
    at.made().with_client().write_config("[clients.claude]\nenabled = true\n")
    lines = render_status(_document(at), NOW, StatusStyle(width=60, colours=True))
    assert "\x1b[31m" in lines[0]
    plain = render_status(_document(at), NOW, StatusStyle(width=60))
    commands = {command for each in _document(at)["diagnostics"] for command in each["repair"]}
    assert all(len(line) <= 60 for line in plain[1:] if line.strip() not in commands)


@pytest.mark.hazard(62)
def test_control_characters_are_escaped_on_the_status_page(at: StatusHome) -> None:
    at.made()
    with at.daemon(gateway={"state": "down", "error": "\x1b]0;owned\x07", "unknown": {"/\x1b[2J": 1}}):
        page = "\n".join(render_status(_document(at), NOW, StatusStyle()))
    assert "\x1b" not in page
    assert "\\x1b[2J" in page


def test_doctor_prints_a_line_per_check_and_fails_with_them(at: StatusHome, hyp: Callable[..., Ran]) -> None:
    at.with_rows(1)
    code, out, err = hyp("doctor", "--json")
    document = json.loads(out)
    bad = [check["name"] for check in document["checks"] if check["status"] == "failed"]
    assert (code, document["ok"], document["error"]["kind"]) == (1, False, "check_failed")
    assert "jars" in bad
    assert all(name in document["error"]["message"] for name in bad)
    assert list(document["checks"][0]) == ["name", "status", "detail", "repair"]
    code, out, err = hyp("doctor")
    assert code == 1
    assert "FAILED" in out
    assert "jars: try hyp engine install" in err


def test_repair_commands_exist() -> None:
    """Check every `hyp …` command that diagnostics and checks name in the source."""
    source = Path(status.__file__).parent
    named = {found for path in source.rglob("*.py") for found in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 15
    context = click.Context(root)
    for words in named:
        command: click.Command | None = root
        for word in words.split():
            if not isinstance(command, click.Group) or word.startswith("-"):
                break
            command = command.get_command(context, word) or (command if _takes_arguments(command) else None)
            assert command is not None, f"hyp {words}"


def _takes_arguments(group: Any) -> bool:
    return any(param.param_type_name == "argument" for param in group.params)


def test_status_works_for_an_unusable_home(tmp_path: Path) -> None:
    """Use a path below a file, where no folder can be created."""
    (tmp_path / "file").touch()
    found = collect_snapshot(Home(tmp_path / "file" / "home"), {"HOME": str(tmp_path), "PATH": ""}, NOW, tmp_path)
    assert found.overall == "down"
