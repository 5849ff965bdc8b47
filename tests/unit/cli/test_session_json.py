"""`hyp sessions --json` makes its documents by columns: byte for byte those of `SessionList.list_documents`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypaware.cli import session_json
from hypaware.home import Home
from hypaware.index.filters import Filters
from hypaware.index.prices import read_prices
from hypaware.index.session_order import order_sessions
from hypaware.index.sessions import SessionList
from hypaware.index.store import Index, open_index
from hypaware.state.home_opener import open_home
from hypaware.state.titles import SessionTitle, write_titles
from tests.support.index_home import SONNET, make_home, prompt, response

PRICES = read_prices()
TITLE = 'Read "a.txt",\tthen \\n",\\n  "b": Größe 日本 {} [] %s %b'


def make_odd_home(root: Path) -> Home:
    """Return a home whose sessions have what is rare in long lists."""
    long = {"input_tokens": 300_000, "output_tokens": 77}
    home = make_home(
        root,
        prompt(1, "Only a prompt", at="2026-11-14T08:00:00.000001Z", session_id="prompt", client_name=None, cwd=None),
        response(2, at="2026-11-14T08:01:00Z", session_id="several", usage={"output_tokens": 9}, model=SONNET),
        response(3, at="2026-11-14T08:02:00.5Z", session_id="several", usage={"output_tokens": 90_001}),
        response(4, at="2026-11-14T09:00:00Z", session_id="unpriced", usage={"output_tokens": 1}, model='new "x"'),
        prompt(5, TITLE, at="2026-11-14T09:10:00Z", session_id="long", git_branch="größe"),
        response(6, at="2026-11-14T09:11:00Z", session_id="long", usage=long, model=SONNET, cwd="/home/dev/web"),
        response(7, at="2026-11-14T09:12:00Z", session_id="long", usage=long, model=SONNET, cwd="/home/dev/shop"),
        response(8, at="1969-12-31T23:59:59.999999Z", session_id="old", usage={"cache_read_tokens": 1}),
        prompt(9, "\u202eevil\x1b[2J", at="2026-11-14T09:20:00Z", session_id="hostile"),
    )
    with open_home(home).store.transaction() as connection:
        titles = [SessionTitle("user", TITLE, session_id=each, at="2026-11-14T10:00:00Z") for each in ("old", "prompt")]
        write_titles(connection, "claude", titles)
    return home


def list_all(index: Index) -> SessionList:
    return SessionList(index, order_sessions(index, Filters(), PRICES), PRICES)


@pytest.mark.parametrize("part", [1, 2, 1000])
def test_documents_made_by_columns_are_those_made_one_by_one(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(session_json, "_PART", part)
    with open_index(make_odd_home(tmp_path)) as index:
        found = list_all(index)
        session_json.emit_sessions(found)
        documents = list(found.list_documents())

    printed = capsysbinary.readouterr().out.decode()
    assert json.loads(printed) == {"sessions": documents}
    expected = json.dumps({"sessions": documents}, ensure_ascii=False, indent=2)
    assert printed == expected.replace("\u202e", "\\u202e") + "\n"
    by_id = {each["session_id"]: each for each in documents}
    assert len(by_id) == 6
    assert by_id["old"]["title"] == by_id["prompt"]["title"]
    assert len(by_id["several"]["models"]) == 2
    assert by_id["unpriced"]["unpriced_models"] == ['new "x"']
    # Both responses have long prompts, in two folders: twice the price of one.
    assert by_id["long"]["cost_usd"] == pytest.approx(2 * (300_000 * 6 + 77 * 22.5) / 1e6)


def test_an_empty_list_is_an_empty_document(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    with open_index(make_home(tmp_path)) as index:
        session_json.emit_sessions(list_all(index))

    assert capsysbinary.readouterr().out == b'{\n  "sessions": []\n}\n'
