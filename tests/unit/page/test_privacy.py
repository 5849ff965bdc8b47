"""Privacy in the page: rules and where they come from, marking sessions and folders, and requests that are refused."""

from __future__ import annotations

import html
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from hypaware import config
from hypaware.cli import entry
from hypaware.home import Home
from hypaware.page import privacy
from hypaware.page.app import make_app
from hypaware.page.context import PageAccess, PageContext
from hypaware.page.privacy import check_folder, plan_folder
from hypaware.privacy.folder_memory import FolderMemory
from hypaware.privacy.ignored_sessions import ignore_session, ignored_sessions_path, read_ignored_sessions
from hypaware.privacy.policy import PrivacyPolicy
from tests.support.index_home import make_home, prompt
from tests.support.processes import PATIENCE
from tests.support.served_page import PageAnswer, ServedPage, serve_app

pytestmark = pytest.mark.usefixtures("views_wait_for_rows")

OPEN, CLOSED, ODD = "0dc91b82-open", "7f7951bf-closed", "<img src=x>&\"'"
AT = "2026-11-15T08:00:00Z"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name in ("acme/src", "own"):
        (tmp_path / "work" / name).mkdir(parents=True)
    return tmp_path / "work"


@pytest.fixture
def home(tmp_path: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "home"))
    return make_home(
        tmp_path / "home",
        prompt(1, "Open work", at=AT, session_id=OPEN, cwd=str(work / "own")),
        prompt(2, "Work for acme", at=AT, session_id=CLOSED, cwd=str(work / "acme" / "src")),
        prompt(3, "<b>Odd</b>", at=AT, session_id=ODD, cwd=str(work / "acme")),
    )


@pytest.fixture
def page(home: Home) -> Iterator[ServedPage]:
    with closing(PageContext(home)) as context, serve_app(lambda: make_app(context)) as page:
        yield page


def post(page: ServedPage, to: str, origin: str | None = "own", /, **fields: str) -> PageAnswer:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    if origin is not None:
        headers["Origin"] = f"http://127.0.0.1:{page.port}" if origin == "own" else origin
    return page.ask(to, "POST", headers, urlencode(fields))


def shown(page: ServedPage, path: str) -> str:
    answer = page.ask(path)
    assert answer.status == 200, answer.text
    return re.sub(r"\s+", " ", html.unescape(answer.text))


def test_a_session_is_marked_as_the_command_does_and_undone(
    page: ServedPage, home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = post(page, "/privacy/session", id=OPEN, action="ignore")
    assert (answer.status, answer.headers["Location"]) == (303, f"/privacy/session?id={OPEN}&changed=1")
    assert list(read_ignored_sessions(home)) == [OPEN]
    assert "Privacy: not recorded" in shown(page, f"/sessions/{OPEN}")
    assert "Privacy: not recorded" not in shown(page, f"/sessions/{CLOSED}")
    text = shown(page, f"/privacy/session?id={OPEN}&changed=1")
    assert "This session is excluded from recording." in text
    assert "Decided by: hyp session ignore" in text
    assert f"hyp session unignore {OPEN}" in text
    capfd.readouterr()
    assert entry.run(["session", "status", OPEN, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["class"] == "ignore"

    listed = shown(page, "/privacy")
    assert "Open work" in listed
    assert f"hyp session unignore {OPEN}" in listed
    assert post(page, "/privacy/session", id=OPEN, action="unignore").status == 303
    assert read_ignored_sessions(home) == {}
    assert "No session is excluded" in shown(page, "/privacy")


def test_a_folder_is_marked_after_a_preview_and_undone(page: ServedPage, home: Home, work: Path) -> None:
    folder = str(work / "acme")
    text = shown(page, f"/privacy/folder?{urlencode({'path': folder, 'class': 'ignore'})}")
    assert "2 recorded sessions</b> in 2 folders would become <b>ignore</b>" in text
    assert "Work for acme" in text
    assert "Open work" not in text
    assert "Nothing was delivered from this home." in text
    assert f"hyp config set 'privacy.folders.\"{folder}\"' ignore" in text
    assert f"hyp purge --cwd {folder} --dry-run" in text
    assert config.load(home).privacy.folders == {}, "a preview changes nothing"

    answer = post(page, "/privacy/folder", path=folder, **{"class": "ignore"})
    assert (answer.status, answer.headers["Location"]) == (303, "/privacy?changed=1")
    assert config.load(home).privacy.folders == {folder: "ignore"}
    policy = PrivacyPolicy.from_config(home, config.load(home).privacy)
    assert policy.class_of(str(work / "acme" / "src"), CLOSED).label == "ignore"
    listed = shown(page, "/privacy")
    assert "privacy.folders in the config" in listed
    assert f"hyp config unset 'privacy.folders.\"{folder}\"'" in listed
    assert 'data-label="Recorded sessions">2<' in listed
    assert f"privacy.folders in the config: {folder}" in shown(page, f"/privacy/session?id={CLOSED}")
    assert "Nothing: " in shown(page, f"/privacy/folder?{urlencode({'path': folder, 'class': 'ignore'})}")

    assert post(page, "/privacy/folder", path=folder, **{"class": "remove"}).status == 303
    assert config.load(home).privacy.folders == {}


def test_the_command_that_is_shown_does_the_same(page: ServedPage, home: Home, work: Path) -> None:
    folder = f"{work}/with 'quotes' and \"more\""
    assert post(page, "/privacy/folder", path=folder, **{"class": "local-only"}).status == 303
    by_page = home.config.read_text()
    home.config.unlink()
    assert entry.run(["config", "set", privacy.folder_key(folder), "local-only"]) == 0
    assert home.config.read_text() == by_page
    assert entry.run(["config", "unset", privacy.folder_key(folder)]) == 0
    assert config.load(home).privacy.folders == {}


def test_rules_of_files_and_of_missing_folders_are_listed_with_their_undo(
    page: ServedPage, home: Home, work: Path
) -> None:
    (work / "acme" / ".hypignore").write_text("local-only")
    (work / "own" / ".hypignore").touch()
    PrivacyPolicy(home, remember=True).class_of(str(work / "own"), None)
    shutil.rmtree(work / "own")
    text = shown(page, "/privacy")
    assert f"rm {work}/acme/.hypignore" in text
    assert "a .hypignore file" in text
    assert "the last known .hypignore of a folder that is missing" in text
    assert f"mkdir -p {work}/own && echo full > {work}/own/.hypignore" in text
    assert "Sessions whose folder is unknown: <b>full</b>" in text


def test_a_stricter_file_wins_over_the_config_in_the_preview(home: Home, work: Path) -> None:
    (work / "acme" / "src" / ".hypignore").write_text("ignore")
    recorded = [str(work / "acme" / "src"), str(work / "acme"), str(work / "own")]
    plan = plan_folder(home, str(work / "acme"), "local-only", recorded)
    assert plan.folders == {str(work / "acme"): ("full", "local-only")}


def test_unreadable_privacy_files_are_reported_with_their_repair(page: ServedPage, home: Home) -> None:
    ignored_sessions_path(home).write_text("{")
    text = shown(page, "/privacy")
    assert "no session is recorded until it is repaired" in text
    assert f"mv {ignored_sessions_path(home)}" in text
    assert post(page, "/privacy/session", id=OPEN, action="ignore").status == 503
    assert ignored_sessions_path(home).read_text() == "{"


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1", "https://"])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/privacy/session", {"id": OPEN, "action": "ignore"}),
        ("/privacy/folder", {"path": "/x", "class": "ignore"}),
        ("/purge", {"id": OPEN, "confirm": OPEN[:8], "preview": "1.2"}),
    ],
)
def test_a_change_that_another_site_sends_is_refused(
    page: ServedPage, home: Home, origin: str | None, path: str, fields: dict[str, str]
) -> None:
    answer = post(page, path, origin, **fields)
    assert (answer.status, "must come from this page" in answer.text) == (403, True)
    assert read_ignored_sessions(home) == {}
    assert not home.config.exists()
    assert not (home.run / "page" / "purges").exists()


def test_changes_are_not_made_by_reading(page: ServedPage, home: Home) -> None:
    for path in (f"/privacy/session?id={OPEN}&action=ignore", "/privacy/folder?path=/x&class=ignore"):
        assert page.ask(path).status == 200
    assert read_ignored_sessions(home) == {}
    assert not home.config.exists()


def test_a_page_that_may_not_change_anything_refuses_and_shows_no_forms(home: Home) -> None:
    ignore_session(home, CLOSED)
    access = PageAccess(may_change=False)
    with closing(PageContext(home, access)) as context, serve_app(lambda: make_app(context)) as page:
        for path, fields in (
            ("/privacy/session", {"id": OPEN, "action": "ignore"}),
            ("/privacy/session", {"id": CLOSED, "action": "unignore"}),
            ("/privacy/folder", {"path": "/x", "class": "ignore"}),
            ("/purge", {"id": OPEN, "confirm": OPEN[:8], "preview": "1.2"}),
        ):
            assert post(page, path, **fields).status == 403
        for path in (f"/purge?id={OPEN}", f"/purge/body?id={OPEN}", "/privacy/folder?path=/x"):
            assert page.ask(path).status == 403
        for path in ("/privacy", f"/privacy/session?id={OPEN}"):
            assert 'method="post"' not in shown(page, path)
            assert "/purge?" not in shown(page, path)
    assert list(read_ignored_sessions(home)) == [CLOSED]
    assert not home.config.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "", "action": "ignore"},
        {"id": "never-seen", "action": "ignore"},
        {"id": "a\x1b[2J", "action": "ignore"},
        {"id": OPEN, "action": "forget"},
        {"id": OPEN},
        {},
    ],
)
def test_an_incomplete_or_unknown_session_is_refused(page: ServedPage, home: Home, fields: dict[str, str]) -> None:
    assert post(page, "/privacy/session", **fields).status == 400
    assert read_ignored_sessions(home) == {}


@pytest.mark.parametrize("path", ["", "work", "../x", "~nobody-here/x", "/a\nb", "/a\0b", "/" + "x" * 5000])
def test_a_text_that_is_no_folder_is_refused(page: ServedPage, home: Home, path: str) -> None:
    assert page.ask(f"/privacy/folder?{urlencode({'path': path})}").status == 400
    assert post(page, "/privacy/folder", path=path, **{"class": "ignore"}).status == 400
    assert post(page, "/privacy/folder", path="/x", **{"class": "secret"}).status == 400
    assert not home.config.exists()


def test_a_folder_is_stored_without_its_last_slash() -> None:
    assert [check_folder(each) for each in ("/a/b/", "~/work", "/")] == ["/a/b", "~/work", "/"]


def test_an_id_of_any_characters_works_and_is_escaped(page: ServedPage, home: Home) -> None:
    answer = page.ask(f"/privacy/session?id={quote(ODD)}")
    assert answer.status == 200
    assert "<img src=x>" not in answer.text
    assert post(page, "/privacy/session", id=ODD, action="ignore").status == 303
    assert list(read_ignored_sessions(home)) == [ODD]
    listed = page.ask("/privacy").text
    assert "<img src=x>" not in listed
    assert "<b>Odd</b>" not in listed


def test_folders_that_do_not_answer_delay_no_request_for_long(
    page: ServedPage, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr(privacy, "_SECONDS", 0.1)
    monkeypatch.setattr(PrivacyPolicy, "decide", lambda *_: release.wait(PATIENCE))
    monkeypatch.setattr(FolderMemory, "find_rule", lambda *_: release.wait(PATIENCE))
    try:
        assert "slow to answer" in shown(page, "/privacy")
        assert page.ask(f"/privacy/session?id={OPEN}").status == 503
    finally:
        release.set()


def test_the_menu_of_a_session_leads_to_every_change(home: Home) -> None:
    with closing(PageContext(home)) as context:
        template = context._templates.get_template("session_privacy.html")
        text = html.unescape(template.render(session={"session_id": OPEN, "cwd": "/a b"}))
        assert 'action="/privacy/session"' in text
        assert "/privacy/folder?path=%2Fa+b" in text
        assert f"/purge?id={OPEN}" in text
        assert "/privacy/folder" not in template.render(session={"session_id": OPEN, "cwd": None})
    with closing(PageContext(home, PageAccess(is_team=True, may_change=False))) as context:
        text = context._templates.get_template("session_privacy.html").render(session={"session_id": OPEN, "cwd": "/"})
        assert text.strip() == ""
