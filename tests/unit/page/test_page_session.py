"""A session in the page: all of it can be read, nothing of it becomes markup, and long ones are sent in parts."""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.api import open_lake
from hypaware.home import Home
from hypaware.index.prompts import prompt_of
from hypaware.index.refresh import refresh_index
from hypaware.index.store import open_index
from hypaware.page import session
from hypaware.page.address import message_anchor, session_path
from hypaware.page.app import make_app
from hypaware.page.context import FOLDER, PageContext
from hypaware.page.session import render, render_part
from hypaware.page.session_parts import find_in_session, list_turns, locate_session
from hypaware.render.safe_markdown import to_html
from hypaware.render.tool_calls import result_text
from hypaware.text import escape
from tests.support import codex_rollouts
from tests.support.claude_transcripts import SAMPLES, sample, sample_names
from tests.support.conversations import TOKENS, answered, called, conversation, message, part, said, typed
from tests.support.index_home import make_home, prompt, response
from tests.support.light_home import import_history
from tests.support.served_page import ServedPage, serve_app

pytestmark = pytest.mark.usefixtures("views_wait_for_rows")

SESSION, OTHER = "0dc91b82-aaaa-4907", "0dc91b82-bbbb-4907"
SECRET = "ghp_" + "a1B2" * 9
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HOSTILE = [
    "</summary></details></section></main><script>alert(1)</script><img src=x onerror=alert(1)>",
    "[x](javascript:alert(1)) [y](data:text/html,<script>) ![z](https://example.com/track.png) <https://example.com>",
    "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe \u2066x\u2069 \x00 \x9b2J",
    "<form action=/purge method=post><input name=id><button formaction=//evil>x</button></form>",
    '<meta http-equiv="refresh" content="0;url=//evil"><base href=//evil><link rel=stylesheet href=//evil>',
    "<svg onload=alert(1)><style>*{display:none}</style></svg>",
    "<!-- --!> <![CDATA[ ]]> <?xml ?> &lt;script&gt; &#60;b&#62; \"'`",
    "x" * 1_000_000,
    ">" * 20_000 + " deep",
    "- " * 3000 + "deep",
    "[" * 5000 + "x" + "]" * 5000,
    "*a _b " * 3000,
    "```\nopen",
    "| a | b |\n|:--|--:|\n| <script> | [x](javascript:1) |",
]
_VOID = {"meta", "br", "hr", "link", "input", "img"}
_OWN_TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "script",
        "body",
        "a",
        "header",
        "nav",
        "form",
        "input",
        "kbd",
        "button",
    ),
    *("main", "footer", "span", "dialog", "div", "h1", "h2", "h3", "h4", "h5", "h6", "dl", "dt", "dd", "p", "img"),
    *(
        "details",
        "summary",
        "label",
        "code",
        "pre",
        "ol",
        "ul",
        "li",
        "section",
        "time",
        "strong",
        "em",
        "s",
        "br",
        "hr",
    ),
    *("blockquote", "table", "thead", "tbody", "tr", "th", "td", "small"),
}
_OWN_SCRIPTS = {"/static/theme.js", "/static/page.js", "/static/session.js", "/static/session_compare.js"}


class Shown(HTMLParser):
    """What a browser would see: tags, targets, and the text of each part."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.targets: set[str] = set()
        self.attributes: set[str] = set()
        self.sources: set[str] = set()
        self.ids: list[str] = []
        self.parts: dict[str, str] = defaultdict(str)
        self.more: dict[str, str] = {}
        self.text = ""
        self._open: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert len(given) == len(attrs)
        self.tags.add(tag)
        self.attributes |= given.keys()
        self.targets |= {str(given[name]) for name in ("href", "action", "formaction") if name in given}
        self.sources |= {str(given["src"])} if "src" in given else set()
        self.ids += [str(given["id"])] if "id" in given else []
        if given.get("class") == "more":
            self.more[self._part() or ""] = str(given["href"])
        if tag not in _VOID:
            self._open.append((tag, given.get("data-part")))

    def handle_endtag(self, tag: str) -> None:
        assert tag in _VOID or self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if (part := self._part()) and not any(tag == "summary" for tag, _ in self._open):
            self.parts[part] += data

    def _part(self) -> str | None:
        return next((part for _, part in reversed(self._open) if part), None)


@contextmanager
def served(home: Home) -> Iterator[ServedPage]:
    # The page answers from what is indexed, and waits only a moment for the rest.
    refresh_index(home)
    with closing(PageContext(home)) as context, serve_app(lambda: make_app(context)) as page:
        yield page


def rows() -> list[dict[str, Any]]:
    tool: dict[str, Any] = {
        "part_type": "tool_call",
        "tool_name": "Bash",
        "tool_call_id": "c1",
        "tool_args": {"command": "make test"},
    }
    result: dict[str, Any] = {
        "part_type": "tool_result",
        "tool_name": "Bash",
        "tool_call_id": "c1",
        "tool_result_for": "c1",
    }
    return [
        prompt(1, f"Use **{SECRET}**", at="2026-11-14T08:00:00Z", session_id=SESSION),
        response(2, at="2026-11-14T08:00:01Z", session_id=SESSION, part_type="reasoning", content_text="Let me think."),
        response(3, at="2026-11-14T08:00:02Z", session_id=SESSION, usage={"output_tokens": 1000}, **tool),
        prompt(4, "no rule", at="2026-11-14T08:00:03Z", session_id=SESSION, is_error=True, **result),
        response(5, at="2026-11-14T08:00:04Z", session_id=SESSION, content_text="It failed:\n\n```python\nx = 1\n```"),
        prompt(6, "Try again", at="2026-11-14T08:01:00Z", session_id=SESSION),
        response(7, at="2026-11-14T08:01:01Z", session_id=SESSION, content_text="Done <b>now</b>."),
        prompt(8, "Another one", at="2026-11-15T08:00:00Z", session_id=OTHER),
    ]


@pytest.fixture
def recorded(home: Home) -> Home:
    return make_home(home.root, *rows())


def rendered(*messages: Any, **session: Any) -> str:
    return "".join(render(conversation(*messages, **session), UTC))


def test_a_session_is_a_readable_conversation(recorded: Home) -> None:
    with served(recorded) as page:
        answer = page.ask(f"/sessions/{SESSION}")
    shown = Shown(answer.text)

    assert answer.status == 200
    assert f"<strong>{SECRET}</strong>" in answer.text
    assert '<code class="language-python">' in answer.text
    assert re.search(r'<details class="thinking"[^>]*><summary>thinking \(1 line\)</summary>', answer.text)
    assert re.search(
        r'<details class="call failed" open[^>]*><summary><strong>Bash</strong><code>make test', answer.text
    )
    assert f"cd /home/dev/web &amp;&amp; claude --resume {SESSION}" in answer.text
    assert "another machine" not in answer.text
    assert "1.0k out" in shown.text
    assert len(shown.ids) == len(set(shown.ids))
    for number in range(1, 8):
        assert message_anchor(f"message-{number}") in shown.ids
    assert {f"#{message_anchor('message-1')}", f"#{message_anchor('message-6')}"} <= shown.targets


def test_the_turns_are_links_and_say_where_errors_are(recorded: Home) -> None:
    with open_index(recorded) as index:
        turns = list_turns(index, locate_session(index, SESSION))

    assert [(turn.prompt, turn.errors) for turn in turns] == [(f"Use **{SECRET}**", 1), ("Try again", 0)]
    assert turns[1].anchor == message_anchor("message-6")


def test_the_beginning_of_an_id_leads_to_the_session(recorded: Home) -> None:
    with served(recorded) as page:
        answer = page.ask("/sessions/0dc91b82-a?timezone=UTC")
        assert (answer.status, answer.headers["Location"]) == (302, f"/sessions/{SESSION}?timezone=UTC")


@pytest.mark.parametrize(
    ("given", "links"),
    [("0dc9", {SESSION, OTHER}), ("0dc91b82-aaab", {SESSION}), ("zzz", None), ("<script>alert(1)</script>", None)],
)
def test_an_unknown_id_gets_a_page_that_helps(recorded: Home, given: str, links: set[str] | None) -> None:
    with served(recorded) as page:
        for path in ("", "/find?q=x", "/download"):
            answer = page.ask(f"{session_path(given)}{path}")
            shown = Shown(answer.text)
            found = {each for each in (SESSION, OTHER) if f"/sessions/{each}" in shown.targets}
            assert answer.status == 404
            assert found == links if links else len(found) == 1
            check_harmless(answer.text)


@pytest.mark.hazard(62)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_recorded_becomes_markup(home: Home, text: str) -> None:
    named = text[:200].replace("\x00", "")
    tool: dict[str, Any] = {
        "part_type": "tool_call",
        "tool_name": named,
        "tool_call_id": named,
        "tool_args": {"command": text, "x": text},
    }
    edit: dict[str, Any] = {"part_type": "tool_call", "tool_name": "Edit", "tool_call_id": "e", "content_text": None}
    edit["tool_args"] = {"file_path": named, "old_string": text, "new_string": f"{text}x"}
    result: dict[str, Any] = {
        "part_type": "tool_result",
        "tool_name": named,
        "tool_call_id": named,
        "tool_result_for": named,
    }
    at = [f"2026-11-14T08:00:{second:02}Z" for second in range(20)]
    known: dict[str, Any] = {"session_id": named, "cwd": f"/{named}", "git_branch": named, "conversation_id": named}
    make_home(
        home.root,
        prompt(1, text, at=at[1], **known, message_id=named),
        response(2, at=at[2], content_text=text, **{**known, "model": named}),
        response(3, at=at[3], part_type="reasoning", content_text=text, **known),
        response(4, at=at[4], content_text=None, **tool, **known),
        prompt(5, text, at=at[5], **result, **known),
        response(6, at=at[6], **edit, **known),
        response(7, at=at[7], part_type="image", content_text=text, **known),
        response(8, at=at[8], part_type="error", content_text=text, is_error=True, **known),
        prompt(9, f"<system-reminder>{text}", at=at[9], **known),
        response(10, at=at[10], content_text=text, agent_id=named, is_sidechain=True, **known),
    )
    path = session_path(named)
    with served(home) as page:
        answer = page.ask(path)
        answers = [
            answer,
            page.ask(f"{path}/find?q={quote(text[:50])}"),
            page.ask(f"/compare?a={quote(named)}&b={quote(named)}"),
        ]
        answers += [page.ask(each.replace("&amp;", "&")) for each in Shown(answer.text).more.values()]
    for each in answers:
        assert each.status == 200
        assert "default-src 'none'" in each.headers["Content-Security-Policy"]
        check_harmless(each.text)
    assert len(answer.body) < 400_000


def check_harmless(html: str) -> None:
    shown = Shown(html)
    assert shown.tags <= _OWN_TAGS
    assert not {name for name in shown.attributes if name.startswith("on") or name in ("style", "srcdoc", "formaction")}
    assert shown.sources <= _OWN_SCRIPTS | {"/static/icon.svg"}
    for target in shown.targets:
        assert urlsplit(target).scheme in ("", "http", "https", "mailto")
        assert not target.startswith("//")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown.text)


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_any_text_is_shown_as_itself(text: str) -> None:
    found = rendered(
        typed(0, text),
        message(1, "assistant", part("reasoning", text, part_id="message-1#0")),
        called(2, "a", text, {"command": text, "other": text}),
        answered(3, "a", text),
        title=text,
        cwd=text,
    )
    check_harmless(found)
    words = re.sub("[^a-zA-Z0-9]", "", escape(text))
    assert words in re.sub("[^a-zA-Z0-9]", "", Shown(found).text)


def test_external_images_are_never_loaded_and_links_say_nothing_about_the_page() -> None:
    found = rendered(said(0, "![x](https://example.com/a.png) [link](https://example.com) [bad](javascript:alert(1))"))

    assert "<img" not in found
    assert '<a href="https://example.com" rel="noopener noreferrer nofollow" target="_blank">link</a>' in found
    assert 'href="javascript' not in found


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        (f"data:image/png;base64,{PIXEL}", True),
        ("data:image/png;base64,<stripped>", False),
        (f"data:image/svg+xml;base64,{PIXEL}", False),
        (f"data:image/jpeg;base64,{PIXEL}", False),
        ("data:image/png;base64,PHNjcmlwdD4=", False),
        (f'data:image/png;base64,{PIXEL}" onerror="alert(1)', False),
        ("https://example.com/a.png", False),
        (None, False),
    ],
)
def test_images_are_shown_where_they_were_kept(text: str | None, is_shown: bool) -> None:
    found = rendered(message(0, "user", part("image", text, part_id="message-0#0")))

    assert ("<img" in found) == is_shown
    assert 'onerror="' not in found
    if text is None:
        assert "not kept" in found


def test_long_texts_are_cut_and_all_of_them_can_be_fetched(home: Home) -> None:
    text = "".join(f"{number} " for number in range(60_000))
    make_home(home.root, *rows(), response(20, at="2026-11-14T09:00:00Z", session_id=SESSION, content_text=text))
    with served(home) as page:
        answer = page.ask(f"/sessions/{SESSION}")
        shown = Shown(answer.text)
        address = shown.more[f"{message_anchor('message-20')}-0"]
        assert len(answer.body) < 100_000
        assert page.ask(f"{address}&format=text").text == text
        pieces = ""
        while address:
            piece = page.ask(f"{address}&format=piece")
            fragment = Shown(piece.text)
            pieces += fragment.text.partition("Show more")[0].rstrip("\n")
            address = fragment.more.get("", "")
            assert len(piece.body) < 200_000
        assert page.ask(f"/sessions/{SESSION}/part?part=message-20%230&which=nothing").status == 400
        assert page.ask(f"/sessions/{SESSION}/part?part=message-99%230").status == 404
    assert pieces.replace("\n", "") == text


def test_a_diff_is_coloured_and_all_of_it_can_be_fetched(home: Home) -> None:
    lines = [f"line {number}" for number in range(300)]
    args = {"file_path": "/home/dev/web/a.py", "content": "\n".join(lines)}
    tool: dict[str, Any] = {
        "part_type": "tool_call",
        "tool_name": "Write",
        "tool_call_id": "w",
        "content_text": None,
        "tool_args": args,
    }
    make_home(home.root, response(1, at="2026-11-14T09:00:00Z", session_id=SESSION, **tool))
    with served(home) as page:
        answer = page.ask(f"/sessions/{SESSION}").text
        (address,) = Shown(answer).more.values()
        whole = page.ask(f"{address}&format=piece").text
    assert '<span class="add">+ line 0</span>' in answer
    assert "Show all (240 more lines)" in answer
    assert '<span class="add">+ line 299</span>' in whole


def import_samples(home: Home, root: Path) -> None:
    folder = root / "claude" / "projects" / "-home-dev-project"
    for name in sample_names():
        target = folder.joinpath(*Path(name).parts[2:])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(sample(name))
        meta = (SAMPLES / name).with_suffix(".meta.json")
        if meta.exists():
            target.with_suffix(".meta.json").write_bytes(meta.read_bytes())
    rollouts = root / "codex" / "sessions" / "2026" / "11" / "15"
    rollouts.mkdir(parents=True)
    for path in codex_rollouts.SAMPLES.rglob("rollout*.jsonl.xz"):
        (rollouts / path.name.removesuffix(".xz")).write_bytes(lzma.decompress(path.read_bytes()))
    environment = {"HOME": str(root), "CLAUDE_CONFIG_DIR": str(root / "claude"), "CODEX_HOME": str(root / "codex")}
    for provider in ("claude", "codex"):
        assert import_history(home, environment, provider).rows.written


def test_real_sessions_are_shown_with_the_same_text_as_by_the_command(home: Home, tmp_path: Path) -> None:

    make_home(home.root)
    import_samples(home, tmp_path / "samples")
    lake = open_lake(home.root)
    compared = 0
    with served(home) as page:
        for session_id in [each["session_id"] for each in lake.sessions()["sessions"]]:
            answer = page.ask(session_path(session_id))
            shown = Shown(answer.text)
            check_harmless(answer.text)
            for each in lake.show(session_id)["messages"]:
                for found in each["parts"]:
                    name = f"{message_anchor(each['message_id'])}-{found['part_id'].rpartition('#')[2]}"
                    text = found["text"] or ""
                    if found["type"] == "text" and (found["is_typed"] or each["role"] == "assistant"):
                        expected = Shown(to_html(prompt_of(text) if found["is_typed"] else text)).text
                    elif found["type"] == "tool_call" or not text:
                        continue
                    else:
                        address = f"{session_path(session_id)}/part?format=text&part={quote(found['part_id'])}"
                        expected = page.ask(address).text
                        assert result_text(found) == expected or found["type"] != "tool_result"
                        if name in shown.more:
                            cut = shown.parts[name].partition("Show all")[0]
                            assert squeeze(expected).startswith(squeeze(cut))
                            continue
                    assert squeeze(expected) in squeeze(shown.parts[name]), (session_id, found)
                    compared += 1
    assert compared > 100


def squeeze(text: str) -> str:
    return " ".join(text.split())


def test_words_are_found_in_what_is_folded_and_in_what_was_cut(home: Home) -> None:
    long = "x " * 50_000 + "Needle"
    make_home(home.root, *rows(), response(20, at="2026-11-14T09:00:00Z", session_id=SESSION, content_text=long))
    with served(home) as page:
        found = json.loads(page.ask(f"/sessions/{SESSION}/find?format=json&q=needle").text)
        folded = json.loads(page.ask(f"/sessions/{SESSION}/find?format=json&q=ME+THINK").text)
        called = json.loads(page.ask(f"/sessions/{SESSION}/find?format=json&q=make+test").text)
        listed = page.ask(f"/sessions/{SESSION}/find?q=again")
    anchor = message_anchor("message-20")
    assert found == {"matches": [{"part": f"{anchor}-0", "anchor": anchor, "count": 1}], "is_complete": True}
    assert [match["anchor"] for match in folded["matches"]] == [message_anchor("message-2")]
    assert [match["anchor"] for match in called["matches"]] == [message_anchor("message-3")]
    assert f"/sessions/{SESSION}#{message_anchor('message-6')}" in Shown(listed.text).targets


def test_nothing_is_found_for_no_words(recorded: Home) -> None:
    with open_index(recorded) as index:
        assert find_in_session(index, locate_session(index, SESSION), " ") == []


@pytest.mark.parametrize(("format_", "start"), [("html", "<!DOCTYPE html>"), ("markdown", "# Use")])
def test_a_session_is_downloaded_as_one_file(recorded: Home, format_: str, start: str) -> None:
    with served(recorded) as page:
        plain = page.ask(f"/sessions/{SESSION}/download?format={format_}")
        redacted = page.ask(f"/sessions/{SESSION}/download?format={format_}&redact=1")
        assert page.ask(f"/sessions/{SESSION}/download?format=exe").status == 400
    assert plain.text.startswith(start)
    assert SECRET in plain.text
    assert SECRET not in redacted.text
    assert re.fullmatch(rf'attachment; filename="{SESSION}\.(html|md)"', plain.headers["Content-Disposition"])
    assert re.fullmatch(
        rf'attachment; filename="{SESSION}-redacted\.(html|md)"', redacted.headers["Content-Disposition"]
    )
    assert not (recorded.root / "redaction.key").exists()


def test_the_name_of_a_download_has_no_surprises(home: Home) -> None:
    hostile = 'a"; filename="b.exe"\r\nX: y/../..'.replace("\r\n", " ")
    make_home(home.root, prompt(1, "x", at="2026-11-14T08:00:00Z", session_id=hostile))
    with served(home) as page:
        answer = page.ask(f"{session_path(hostile)}/download")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="a-filename-b.exe-X-y-..-...html"'


def test_a_message_is_copied_as_markdown(recorded: Home) -> None:
    with served(recorded) as page:
        answer = page.ask(f"/sessions/{SESSION}/message?message=message-5&timezone=UTC")
        assert page.ask(f"/sessions/{SESSION}/message?message=none").status == 404
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.text.endswith("It failed:\n\n```python\nx = 1\n```\n")


def test_a_session_of_another_machine_names_the_machine(recorded: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_index(recorded) as index:
        ((machine,),) = index.connection.execute(
            "SELECT DISTINCT n.name FROM sessions s JOIN names n ON n.id = s.machine"
        )
    monkeypatch.setattr(session, "own_machine", lambda _context: "gw-another")
    with served(recorded) as page:
        text = page.ask(f"/sessions/{SESSION}").text
    assert f"Recorded on another machine ({machine}): run it there." in text


def test_two_sessions_stand_side_by_side_turn_by_turn(recorded: Home) -> None:
    with served(recorded) as page:
        answer = page.ask(f"/compare?a={SESSION}&b={OTHER}")
        missing = page.ask(f"/compare?a={SESSION}")
        unknown = page.ask(f"/compare?a={SESSION}&b=zzz")
    shown = Shown(answer.text)
    assert (answer.status, missing.status, unknown.status) == (200, 400, 404)
    assert answer.text.count('<section class="pair"') == 2
    first, second = answer.text.split('<section class="pair"')[1:]
    assert SECRET in first
    assert "Another one" in first
    assert "Try again" in second
    assert "No such turn" in second
    assert len(shown.ids) == len(set(shown.ids))
    assert {f"/sessions/{SESSION}", f"/sessions/{OTHER}"} <= shown.targets


def test_the_same_session_twice_has_no_id_twice(recorded: Home) -> None:
    with served(recorded) as page:
        shown = Shown(page.ask(f"/compare?a={SESSION}&b={SESSION}").text)
    assert len(shown.ids) == len(set(shown.ids))


def test_a_part_of_a_million_characters_is_sent_in_pieces() -> None:
    content, left = render_part(part("tool_result", "z" * 1_000_000), "text", 0)

    assert content.count("z") == 100_000
    assert left == "900,000 more characters"
    assert render_part(part("tool_result", "z" * 1_000_000), "text", 900_000)[1] == ""


def test_a_turn_ends_with_its_tokens_and_cost() -> None:
    found = rendered(typed(0, "x"), said(1, "y", tokens=TOKENS, cost_usd=0.25))

    assert "3 in, 50 out, 11k cache read, 512 cache write, $0.25" in found


def test_the_highlighter_is_the_one_that_its_maintainers_published() -> None:
    folder = FOLDER / "static" / "highlight"
    source = json.loads((folder / "source.json").read_text())

    assert {path.name for path in folder.iterdir()} == {"source.json", "LICENSE", *source["files"]}
    for name, digest in source["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert f"Highlight.js v{source['version']}" in (folder / "highlight.min.js").read_text()[:200]
    assert "BSD 3-Clause" in (folder / "LICENSE").read_text()
