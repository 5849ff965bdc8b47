"""A session in a real browser: read, searched, jumped through, updated while it is recorded, always harmless."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from hypaware.home import Home
from hypaware.index.refresh import refresh_index
from hypaware.page.address import message_anchor
from tests.support.browser import ServePage, Visit
from tests.support.index_home import make_home, prompt, response
from tests.support.light_home import append

SESSION = "0dc91b82-aaaa-4907"
BEGIN = datetime.now(UTC) - timedelta(hours=2)
HOSTILE = (
    "</summary></details></section></main><script>alert(1)</script><img src=x onerror=alert(1)><svg onload=alert(1)>"
    "<iframe srcdoc='<script>alert(1)</script>'></iframe><meta http-equiv=refresh content='0;url=https://example.com'>"
    "<form action=https://example.com><button>x</button></form><style>*{display:none}</style>"
    "[x](javascript:alert(1)) ![i](https://example.com/i.png) \x1b[31m\u202e\n\n"
    "```html\n<script>alert(1)</script>\n```\n"
)


def at(second: float) -> str:
    return (BEGIN + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


def call(number: int, command: str, output: str, *, failed: bool = False) -> list[dict[str, Any]]:
    known: dict[str, Any] = {"session_id": SESSION, "tool_name": "Bash", "tool_call_id": f"call-{number}"}
    return [
        response(
            number, at=at(number), part_type="tool_call", tool_args={"command": command}, content_text=None, **known
        ),
        prompt(
            number + 1,
            output,
            at=at(number + 1),
            part_type="tool_result",
            tool_result_for=f"call-{number}",
            is_error=failed or None,
            **known,
        ),
    ]


def say(number: int, text: str) -> dict[str, Any]:
    return response(number, at=at(number), session_id=SESSION, content_text=text)


def ask(number: int, text: str) -> dict[str, Any]:
    return prompt(number, text, at=at(number), session_id=SESSION)


def make_session(home: Home, turns: int) -> Home:
    """Return a home with a session of turns of ten parts, the fifth call of each tenth turn failed."""
    rows: list[dict[str, Any]] = []
    for turn in range(turns):
        first = turn * 10
        rows.append(ask(first, f"Question {turn}"))
        rows += [say(first + 1, f"Answer {turn}\n\n```python\nx = {turn}\n```")]
        for number in range(first + 2, first + 10, 2):
            rows += call(
                number, f"make {number}", f"result {number}\n" * 20, failed=turn % 10 == 4 and number % 10 == 8
            )
    make_home(home.root, *rows)
    refresh_index(home)
    return home


def top_of(page: Page, selector: str) -> float:
    found: float = page.locator(selector).first.evaluate("element => element.getBoundingClientRect().top")
    return found


def test_keys_move_through_turns_and_errors(home: Home, page_server: ServePage, visit: Visit) -> None:
    page = visit(page_server(make_session(home, 30)), f"/sessions/{SESSION}")
    expect(page.locator("#error-count")).to_have_text("3 errors")

    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("h2.is-here")).to_contain_text("You 2")
    page.keyboard.press("k")
    expect(page.locator("h2.is-here")).to_contain_text("You 1")
    for expected in ("make 48", "make 148", "make 248"):
        page.keyboard.press("e")
        expect(page.locator(".is-here > summary")).to_contain_text(expected)
        expect(page.locator(".is-here")).to_be_in_viewport()
    page.keyboard.press("Shift+E")
    expect(page.locator(".is-here > summary")).to_contain_text("make 148")
    expect(page.locator(".outline li.current")).to_contain_text("Question 14")


def test_a_failed_command_that_only_its_text_tells_is_marked_in_the_outline(
    home: Home, page_server: ServePage, visit: Visit
) -> None:
    failed = "Exit code: 2\nWall time: 0.1 seconds\nOutput:\nmake: *** No rule to make target"
    make_home(home.root, ask(1, "Build it"), *call(2, "make", failed), ask(4, "Again"), *call(5, "make", "done"))
    refresh_index(home)

    page = visit(page_server(home), f"/sessions/{SESSION}")

    expect(page.locator("#error-count")).to_have_text("1 error")
    expect(page.locator(".outline li.has-errors")).to_have_text("Build it1 error")


def test_words_are_found_even_in_folded_or_shortened_parts(home: Home, page_server: ServePage, visit: Visit) -> None:
    make_home(home.root, ask(1, "Where is it?"), *call(2, "cat", "x\n" * 5000 + "the needle"), say(4, "Not here."))
    refresh_index(home)
    page = visit(page_server(home), f"/sessions/{SESSION}")

    page.keyboard.press("f")
    page.keyboard.type("NEEDLE")
    expect(page.locator("#find-count")).to_have_text("1 in 1 parts")
    assert page.get_by_text("the needle").count() == 0
    page.keyboard.press("Enter")
    expect(page.get_by_text("the needle")).to_be_in_viewport()
    page.get_by_label("only matches").check()
    expect(page.get_by_text("Not here.")).to_be_hidden()
    page.locator("#find-words").press("Escape")
    expect(page.get_by_text("Not here.")).to_be_visible()


def test_code_is_coloured_and_folds_open(home: Home, page_server: ServePage, visit: Visit) -> None:
    page = visit(page_server(make_session(home, 2)), f"/sessions/{SESSION}")

    expect(page.locator("code.language-python .hljs-number").first).to_have_text("0")
    expect(page.locator("details.call").first.locator("pre").first).to_be_hidden()
    page.keyboard.press("x")
    expect(page.locator("details.call").first.locator("pre").first).to_be_visible()


def test_a_running_session_updates_itself(home: Home, page_server: ServePage, visit: Visit) -> None:
    server = page_server(make_session(home, 20))
    page = visit(server, f"/sessions/{SESSION}")
    expect(page.locator(".group").first).to_be_visible()
    shown = page.locator("[data-part]").count()

    # Somebody who reads further up is not moved.
    page.mouse.wheel(0, 600)
    expect(page.locator("h2.speaker").first).not_to_be_in_viewport()
    place = top_of(page, "h2.speaker")
    append(home, [ask(300, "One more"), say(301, "Of course."), *call(302, "make live", "it works", failed=True)])
    expect(page.get_by_text("Of course.")).to_be_attached()
    expect(page.locator("details.failed", has_text="make live").locator(".result")).to_have_text("it works\n")
    expect(page.locator("#newest")).to_be_visible()
    expect(page.locator("#announce")).not_to_be_empty()
    expect(page.locator(".outline li").last).to_contain_text("One more")
    expect(page.locator(".session-figures")).to_contain_text("21")
    assert page.locator("[data-part]").count() == shown + 4
    assert abs(top_of(page, "h2.speaker") - place) < 5

    # Somebody at the end follows.
    page.locator("#newest").click()
    expect(page.locator("#newest")).to_be_hidden()
    append(home, [say(310, "The very last words.")])
    expect(page.get_by_text("The very last words.")).to_be_in_viewport()
    append(home, [say(311, "And one.")])
    expect(page.get_by_text("And one.")).to_be_in_viewport()


@pytest.mark.hazard(62)
def test_a_hostile_transcript_does_nothing(home: Home, page_server: ServePage, visit: Visit) -> None:
    rows = [ask(1, HOSTILE), say(2, HOSTILE), *call(3, HOSTILE, HOSTILE, failed=True), say(6, "x" * 1_000_000)]
    rows.append(response(7, at=at(7), session_id=SESSION, part_type="reasoning", content_text=HOSTILE))
    make_home(home.root, *rows)
    refresh_index(home)
    server = page_server(home)
    page = visit(server, f"/sessions/{SESSION}")
    expect(page.locator("#error-count")).to_have_text("1 error")
    page.keyboard.press("x")
    append(home, [say(10, HOSTILE + "last"), *call(11, HOSTILE, HOSTILE + "result")])
    expect(page.get_by_text("last", exact=False).last).to_be_attached()

    assert page.locator("main script, main iframe, main style, main meta, main object").count() == 0
    assert page.locator("main img, main svg").count() == 0
    assert page.url.endswith(f"/sessions/{SESSION}")
    link = page.get_by_role("link", name="Show all").last
    link.click()
    expect(page.get_by_role("link", name="Show more")).to_be_attached()
    compared = visit(server, f"/compare?a={SESSION}&b={SESSION}")
    expect(compared.locator(".pair").first).to_be_visible()


def test_a_link_to_a_message_far_down_arrives_there(home: Home, page_server: ServePage, visit: Visit) -> None:
    server = page_server(make_session(home, 400))
    anchor = message_anchor("message-3501")
    page = visit(server, f"/sessions/{SESSION}#{anchor}")

    expect(page.locator(f"#{anchor}")).to_be_in_viewport()
    expect(page.get_by_text("Answer 350")).to_be_in_viewport()
    # A link to a result opens the call that it belongs to.
    result = message_anchor("message-1203")
    page.goto(f"/sessions/{SESSION}#{result}")
    expect(page.locator(f"#{result}")).to_be_in_viewport()


def test_everything_can_be_read_without_scripts(home: Home, page_server: ServePage, visit: Visit) -> None:
    make_home(home.root, ask(1, "Where is it?"), *call(2, "cat", "x\n" * 5000 + "the needle"))
    refresh_index(home)
    page = visit(page_server(home), f"/sessions/{SESSION}", scripts=False)

    page.locator("details.call > summary").click()
    page.get_by_role("link", name="Show all").click()
    expect(page.get_by_text("the needle")).to_be_attached()
    page.go_back()
    page.get_by_label("Find in this session").fill("needle")
    page.get_by_label("Find in this session").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("1 parts of the session contain")


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_window(home: Home, page_server: ServePage, visit: Visit, width: int) -> None:
    rows = [
        ask(1, "w" * 500),
        say(2, f"| {'a ' * 40} | b |\n|---|---|\n| {'c' * 300} | d |"),
        *call(3, "y" * 900, "z" * 900),
    ]
    make_home(home.root, *rows)
    refresh_index(home)
    server = page_server(home)
    for path in (f"/sessions/{SESSION}", f"/compare?a={SESSION}&b={SESSION}"):
        page = visit(server, path, width=width)
        expect(page.locator(".said").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
