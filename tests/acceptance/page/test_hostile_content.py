"""Transcripts may contain anything. Nothing of it runs, is loaded or leads away, in any view; all of it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from hypaware.home import Home
from tests.support.browser import ServedPage, Visit, serve_page
from tests.support.index_home import make_home, prompt, response

ELSEWHERE = "http://attacker.example"
MARKUP = "\n\n".join(
    (
        "<script>alert(1)</script>",
        '<img src=x onerror="alert(2)">',
        f'"><svg onload=alert(3)><image href="{ELSEWHERE}/a.png">',
        f"<iframe src={ELSEWHERE}></iframe><base href={ELSEWHERE}>",
        f"<meta http-equiv=refresh content='0;url={ELSEWHERE}'>",
        "<style>body { display: none }</style></title></textarea></script><script>alert(4)</script>",
        "[a link](javascript:alert(5)) [another](JaVaScRiPt:alert(6)) [data](data:text/html,<script>alert(7)</script>)",
        f"![an image]({ELSEWHERE}/b.png) <{ELSEWHERE}/c> [ref]\n\n[ref]: {ELSEWHERE}/d 'title'",
        "```html\n<script>alert(8)</script>\n```",
        "{{ 7 * 7 }} {% raw %} ${alert(9)} &lt;script&gt;",
        "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;file:///etc/passwd\x07link\x1b]8;;\x07 \x00 \u202eto the left",
    )
)
LONG_LINE = "x" * 1_000_000
MANY_MARKS = "[" * 20_000 + "*" * 20_000 + "`" * 20_001
ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
SHORT = "<b onclick=alert(1)>\x1b[7m'\"&"


def hostile_home(home: Home) -> Home:
    at = "2026-11-14T08:{:02}:00Z"
    names: dict[str, Any] = {"cwd": f"/home/{SHORT}", "git_branch": SHORT, "session_id": ONE}
    call: dict[str, Any] = {
        "part_type": "tool_call",
        "tool_name": SHORT,
        "tool_call_id": "c1",
        "tool_args": {"command": MARKUP, SHORT: 1},
    }
    result: dict[str, Any] = {
        "part_type": "tool_result",
        "role": "user",
        "tool_name": SHORT,
        "tool_call_id": "c1",
        "is_error": True,
    }
    change = {"file_path": "/x.html", "old_string": MARKUP, "new_string": f"{MARKUP}\n{LONG_LINE}"}
    edit: dict[str, Any] = {"part_type": "tool_call", "tool_name": "Edit", "tool_args": change}
    rows = [
        prompt(1, MARKUP, at=at.format(1), **names),
        response(2, at=at.format(2), content_text=MARKUP, **names, model=SHORT, usage={"output_tokens": 5}),
        response(3, at=at.format(3), content_text=None, **names, **call),
        response(4, at=at.format(4), content_text=MARKUP, **names, **result),
        response(5, at=at.format(5), content_text=LONG_LINE, **names),
        response(6, at=at.format(6), content_text=MANY_MARKS, **names),
        response(7, at=at.format(7), content_text=None, **names, **edit),
        response(8, at=at.format(8), content_text=MARKUP, **names, part_type="reasoning"),
        prompt(9, LONG_LINE, at=at.format(9), session_id=TWO, cwd="/" + "d" * 3000),
    ]
    return make_home(home.root, *rows)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with serve_page(hostile_home(Home(tmp_path_factory.mktemp("hostile") / "home"))) as served:
        yield served


def check_harmless(page: Page, width: int = 1280) -> None:
    """Check what no view may have, whatever was recorded. Dialogs and requests fail the test by themselves."""
    found = page.evaluate(
        """() => [...document.querySelectorAll("*")].flatMap((each) => {
          const odd = [...each.attributes].filter((a) => /^on|^srcdoc$/.test(a.name)).map((a) => a.name);
          const targets = ["href", "src", "action"].map((name) => each.getAttribute(name)).filter(Boolean);
          const isLink = each.matches("a[rel~=noopener][rel~=noreferrer]");
          const isFine = ({protocol, origin}) => origin === location.origin || (isLink && /^https?:$/.test(protocol));
          const away = targets.filter((target) => !isFine(new URL(target, location.href)));
          return [...odd, ...away].map((found) => `${each.tagName} ${found}`);
        })"""
    )
    assert found == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    "path",
    [
        "/?days=all",
        "/sessions",
        "/search?q=alert",
        f"/search?q={quote(SHORT)}",
        f"/sessions/{ONE}",
        f"/sessions/{ONE}/find?q=alert",
        f"/sessions/{TWO}",
        f"/compare?a={ONE}&b={TWO}",
        "/health",
        f"/privacy/session?id={ONE}",
        f"/sessions?project={quote(SHORT)}&grep={quote(SHORT)}",
        f"/sessions/{quote(SHORT, safe='')}",
        f"/{quote(SHORT)}",
        f"/?project={quote(MARKUP[:500])}&since={quote(SHORT)}",
    ],
)
def test_nothing_that_was_recorded_or_asked_for_runs(server: ServedPage, visit: Visit, path: str) -> None:
    page = visit(server, path, expected=("status of 400", "status of 404"))
    expect(page.get_by_role("heading", level=1).first).to_be_visible()
    check_harmless(page)
    page.set_viewport_size({"width": 360, "height": 700})
    check_harmless(page, 360)


def test_markup_is_shown_as_text(server: ServedPage, visit: Visit) -> None:
    page = visit(server, f"/sessions/{ONE}")
    conversation = page.get_by_role("region", name="Conversation")
    expect(conversation).to_contain_text("<script>alert(1)</script>")
    page.get_by_role("button", name="Expand all").click()
    expect(conversation).to_contain_text("alert(8)")
    expect(conversation.get_by_text("a link").first).to_be_visible()
    check_harmless(page)


def test_a_downloaded_session_is_harmless_without_the_policy_of_the_page(
    server: ServedPage, visit: Visit, browser: Browser, tmp_path: Path
) -> None:
    page = visit(server, f"/sessions/{ONE}")
    answer = page.request.get(f"/sessions/{ONE}/download?format=html")
    assert answer.ok
    file = tmp_path / "session.html"
    file.write_bytes(answer.body())
    context = browser.new_context()
    noticed: list[str] = []

    def dismiss(dialog: Dialog) -> None:
        noticed.append(dialog.message)
        dialog.dismiss()

    context.on("dialog", dismiss)
    context.on("request", lambda request: noticed.append(request.url))
    opened = context.new_page()
    opened.goto(file.as_uri())
    opened.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert "<script>alert(1)</script>" in (opened.locator("body").text_content() or "")
    context.close()
    assert noticed == [file.as_uri()]
