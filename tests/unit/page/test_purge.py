"""A purge from the page: preview, confirmation, one start, and every way in which it can end."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from hypaware.home import Home, locks
from hypaware.maintain.purge.run import plan_purge
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.page.app import make_app
from hypaware.page.context import PageContext
from hypaware.page.purge import PurgeRun
from tests.support.delivery_home import DeliveryHome, key
from tests.support.light_home import append, flush
from tests.support.processes import eventually, succeed
from tests.support.rows import rows
from tests.support.served_page import PageAnswer, ServedPage, serve_app

SESSION, DASH = "0dc91b82-3238-4907-98f3-ae0d1d845b97", "--yes; rm -rf /"

pytestmark = pytest.mark.usefixtures("views_wait_for_rows")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    found = Home(tmp_path / "home")
    monkeypatch.setenv("HYP_HOME", str(found.root))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    # What needs an engine fails at once, with exit code 2.
    monkeypatch.setenv("HYP_ENGINE", "none")
    append(found, [*rows(4, session_id=SESSION), *rows(2, 4, session_id="another"), *rows(1, 6, session_id=DASH)])
    flush(found)
    append(found, rows(3, 10, session_id=SESSION))
    return found


@pytest.fixture
def page(home: Home) -> Iterator[ServedPage]:
    with closing(PageContext(home)) as context, serve_app(lambda: make_app(context)) as page:
        yield page


def look(page: ServedPage, session_id: str = SESSION, **query: str) -> str:
    answer = page.ask(f"/purge?{urlencode({'id': session_id, **query})}")
    if answer.status == 303:
        answer = page.ask(answer.headers["Location"])
    assert answer.status == 200, answer.text
    return re.sub(r"\s+", " ", html.unescape(answer.text))


def wait_for(page: ServedPage, home: Home, text: str, session_id: str = SESSION) -> str:
    """Look until nothing runs any more."""
    look(page, session_id)
    runs = [PurgeRun(home, session_id, is_preview=each) for each in (False, True)]
    eventually(lambda: all(each.read_state().name != "running" for each in runs))
    shown = look(page, session_id)
    assert text in shown
    return shown


def plan(home: Home, session_id: str = SESSION) -> dict[str, Any]:
    """Return the report of a dry run."""
    return plan_purge(home, PurgeSelector("session", (session_id,)), lambda *_: None)


def write_result(home: Home, report: object, *, is_preview: bool = False) -> None:
    path = path_of(home, "json", is_preview=is_preview)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(report if isinstance(report, str) else json.dumps(report))


def preview(page: ServedPage, home: Home) -> str:
    """Return the view of a preview that has just been made."""
    write_result(home, plan(home), is_preview=True)
    return look(page)


def confirm(page: ServedPage, shown: str, typed: str | None = None, session_id: str = SESSION) -> PageAnswer:
    stamp = re.search(r'name="preview" value="([^"]*)"', shown)
    assert stamp
    fields = {"id": session_id, "preview": stamp[1], "confirm": session_id[:8] if typed is None else typed}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://127.0.0.1:{page.port}"}
    return page.ask("/purge", "POST", headers, urlencode(fields))


def path_of(home: Home, suffix: str, *, is_preview: bool = False) -> Path:
    return PurgeRun(home, SESSION, is_preview=is_preview)._file(suffix)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the arguments of the commands that are started."""
    found: list[list[str]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        found.append(command[command.index("purge") :])
        return popen(command, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return found


def test_the_preview_counts_what_the_command_would_delete(page: ServedPage, home: Home) -> None:
    delivery = DeliveryHome(home)
    delivery.declare(archive="/tmp/nowhere")
    delivery.delivered(key(), 4)
    text = wait_for(page, home, "What would be deleted")
    assert re.search(r"<td>ai_gateway_messages</td><td>claude</td><td class=\"num\">4</td>", text)
    assert re.search(r"<td>spool</td><td>not yet flushed</td><td class=\"num\">3</td>", text)
    assert "1 data file to rewrite, 0 to delete, 1 examined." in text
    assert "4 of these rows were delivered to" in text
    assert "nowhere" in text
    assert f"Type <code>{SESSION[:8]}</code> to confirm" in text
    assert not home.tombstones.exists(), "a preview changes nothing"
    assert path_of(home, "json", is_preview=True).stat().st_mode & 0o777 == 0o600
    assert path_of(home, "json").parent.stat().st_mode & 0o777 == 0o700


def test_looking_again_counts_again_only_if_that_is_asked_for(
    page: ServedPage, home: Home, started: list[list[str]]
) -> None:
    assert "What would be deleted" in preview(page, home)
    assert started == []
    look(page, again="1")
    wait_for(page, home, "What would be deleted")
    assert started == [["purge", f"--session={SESSION}", "--dry-run", "--json"]]


@pytest.mark.parametrize("typed", ["", "0dc91b8", SESSION, "0DC91B82", "another"])
def test_a_wrong_confirmation_deletes_nothing(
    page: ServedPage, home: Home, started: list[list[str]], typed: str
) -> None:
    answer = confirm(page, preview(page, home), typed)
    assert (answer.status, "nothing was deleted" in answer.text) == (400, True)
    assert started == []
    assert "What would be deleted" in look(page)


def test_a_confirmation_starts_one_purge_however_often_it_is_sent(
    page: ServedPage, home: Home, started: list[list[str]]
) -> None:
    shown = preview(page, home)
    answers: list[PageAnswer] = []
    threads = [threading.Thread(target=lambda: answers.append(confirm(page, shown))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.status for each in answers} == {303}
    text = wait_for(page, home, "The purge failed")
    assert confirm(page, shown).status == 303, "from a tab that was left open"
    assert started == [["purge", f"--session={SESSION}", "--yes", "--json"]]
    assert "HYP_ENGINE=none is invalid" in text, "the error of the command is shown"
    assert "Preview it again" in text
    assert not home.tombstones.exists()
    assert "What would be deleted" in preview(page, home), "a newer preview replaces the result"


def test_a_purge_that_runs_is_shown_and_not_started_again(
    page: ServedPage, home: Home, started: list[list[str]]
) -> None:
    shown = preview(page, home)
    lock = locks.try_lock(path_of(home, "lock"))
    assert lock is not None
    path_of(home, "log").write_text("removing the rows\nsearching every file of the home 40%\n")
    try:
        assert confirm(page, shown).status == 303
        text = look(page)
        assert "The session is being purged" in text
        assert "searching every file of the home 40%" in text
        assert "data-running" in page.ask(f"/purge/body?id={SESSION}").text
        assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in text
    finally:
        locks.unlock(lock)
    assert started == []


def test_a_purge_that_was_killed_says_how_to_finish_it(page: ServedPage, home: Home) -> None:
    write_result(home, '{"selector": ')
    path_of(home, "log").write_text("rewriting \x1b[2J<b>files</b>\n")
    answer = page.ask(f"/purge?id={SESSION}").text
    assert "It was interrupted" in answer
    assert f"hyp purge --session {SESSION}" in answer
    assert "\x1b" not in answer
    assert "<b>files</b>" not in answer


def test_a_result_is_shown_after_the_purge(page: ServedPage, home: Home) -> None:
    write_result(home, plan(home) | {"dry_run": False, "tombstones": {"set": 1, "lifted": 0, "parts": 4}})
    text = look(page)
    assert "The session was purged" in text
    assert "1 data file rewritten" in text
    assert f"hyp purge --session {SESSION} --allow-reimport" in text


def test_an_incomplete_purge_names_the_files(page: ServedPage, home: Home) -> None:
    error = {"kind": "purge_incomplete", "message": "1 files still hold purged rows", "repair": ["hyp engine stop"]}
    remaining = [{"file": "logs/x", "what": "ids of 2 purged rows"}]
    write_result(home, plan(home) | {"dry_run": False, "remaining": remaining, "error": error})
    text = look(page)
    assert "The purge is not complete" in text
    assert "<code>logs/x</code>: ids of 2 purged rows" in text
    assert "hyp engine stop" in text


def test_a_session_that_is_not_recorded_is_not_purged(page: ServedPage, home: Home) -> None:
    text = wait_for(page, home, "The rows could not be counted", "0dc91b82-nothing")
    assert "no session is known whose id starts with 0dc91b82-nothing" in text
    assert page.ask("/purge?id=").status == 400
    fields = {"id": "0dc91b82-nothing", "preview": "", "confirm": "0dc91b82"}
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"http://127.0.0.1:{page.port}"}
    assert page.ask("/purge", "POST", headers, urlencode(fields)).status == 303
    assert PurgeRun(home, "0dc91b82-nothing", is_preview=False).read_state().name == "none"


def test_the_beginning_of_an_id_is_not_enough(page: ServedPage, home: Home) -> None:
    text = wait_for(page, home, "The rows could not be counted", SESSION[:8])
    assert f"no session has this id, but that of {SESSION} begins like it" in text
    assert 'name="confirm"' not in text


def test_an_id_that_looks_like_an_option_is_only_an_id(page: ServedPage, home: Home) -> None:
    shown = wait_for(page, home, "What would be deleted", DASH)
    assert re.search(r"<td>ai_gateway_messages</td><td>claude</td><td class=\"num\">1</td>", shown)
    assert confirm(page, shown, session_id=DASH).status == 303


def test_a_preview_continues_when_the_process_that_started_it_ends(home: Home) -> None:
    code = f"""
import os, sys
from hypaware.home import Home
from hypaware.page.purge import PurgeRun
assert PurgeRun(Home.from_environment(), {SESSION!r}, is_preview=True).start()
os._exit(0)
"""
    succeed(code, home)
    run = PurgeRun(home, SESSION, is_preview=True)
    eventually(lambda: run.read_state().name == "done")
    assert run.read_state().report["spool"]["rows"] == 3


def test_results_are_removed_after_a_day(home: Home) -> None:
    run = PurgeRun(home, SESSION, is_preview=False)
    write_result(home, plan(home))
    assert run.read_state().name == "done"
    os.utime(path_of(home, "json"), (0, 0))
    assert run.read_state().name == "none"
    with closing(PageContext(home)) as context:
        make_app(context)
    assert not path_of(home, "json").exists()
