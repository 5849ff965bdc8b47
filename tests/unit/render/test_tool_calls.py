"""Tool calls in a few words, and the text of their results."""

from __future__ import annotations

from typing import Any

import pytest

from hypaware.render.tool_calls import has_failed, result_text, summarize_call
from tests.support.conversations import result

CWD = "/home/dev/project"
WRAPPED = (
    '[{"type":"input_text","text":"Script completed\\nWall time 1 s\\nOutput:\\n"},{"type":"input_text","text":"2"}]'
)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("Bash", {"command": "make  test\nmake lint", "description": "Run"}, "Bash: make test make lint"),
        ("Read", {"file_path": f"{CWD}/a.py"}, "Read: a.py"),
        ("Read", {"file_path": "/etc/hosts"}, "Read: /etc/hosts"),
        ("Grep", {"pattern": "def", "path": f"{CWD}/src"}, "Grep: def in src"),
        ("Task", {"description": "Count", "prompt": "Count all"}, "Task: Count"),
        ("mcp__github__get_issue", {"owner": "a", "number": 7}, 'github:get_issue: {"owner": "a", "number": 7}'),
        ("WebFetch", {"url": "https://example.com", "prompt": "x"}, "WebFetch: https://example.com"),
        ("shell", {"command": ["bash", "-lc", "echo hi"]}, "shell: echo hi"),
        ("shell", {"command": ["git", "status"]}, "shell: git status"),
        ("exec", 'await tools.exec_command({cmd: "ls -l"}); tools.exec_command({"cmd": "pwd"})', "exec: ls -l; pwd"),
        ("exec", "const x = 1;", "exec: const x = 1;"),
        ("TodoWrite", {"todos": [{"content": "A", "status": "completed"}, {"content": "B"}]}, "TodoWrite: 1 of 2 done"),
        ("update_plan", {"plan": [{"step": "A", "status": "in_progress"}]}, "update_plan: 0 of 1 done"),
        ("apply_patch", "*** Begin Patch\n*** Update File: a.py\n+x\n*** End Patch", "apply_patch: a.py +1 -0"),
        ("Edit", {"file_path": f"{CWD}/a.py", "old_string": "x", "new_string": "y"}, "Edit: a.py +1 -1"),
        (None, None, "tool: "),
        ("x", {}, "x: "),
        ("x", [1, 2], "x: [1, 2]"),
        ("x", {"todos": "no list"}, "x: no list"),
        ("x", {"todos": [7]}, 'x: {"todos": [7]}'),
    ],
)
def test_a_call_is_shown_with_its_most_telling_argument(name: str | None, args: Any, expected: str) -> None:
    found = summarize_call(name, args, CWD)

    assert f"{found.name}: {found.summary}" == expected


def test_a_summary_is_one_line_of_bounded_length() -> None:
    nested: Any = []
    for _ in range(200_000):
        nested = [nested]

    assert summarize_call("x", nested).summary == "…"
    assert len(summarize_call("x", {"command": "y\n" * 1_000_000}).summary) < 3000


@pytest.mark.parametrize(
    ("stored", "text", "failed"),
    [
        ("hi\n", "hi\n", False),
        ("<tool_use_error>File does not exist.</tool_use_error>", "File does not exist.", False),
        (WRAPPED, "2", False),
        ("Exit code: 0\nWall time: 0 seconds\nOutput:\nhi\n", "hi\n", False),
        (
            "Exit code: 1\nWall time: 0 seconds\nOutput:\nno\n",
            "Exit code: 1\nWall time: 0 seconds\nOutput:\nno\n",
            True,
        ),
        ("Chunk ID: 5\nWall time: 0.0 seconds\nProcess exited with code 0\nOutput:\nblue\n", "blue\n", False),
        ('{"output":"Success","metadata":{"exit_code":0}}', "Success", False),
        ('{"output":7}', '{"output":7}', False),
        ('[{"text":', '[{"text":', False),
        ("the file says: Exit code 7", "the file says: Exit code 7", False),
        (None, "", False),
    ],
)
def test_the_text_of_a_result_is_what_the_tool_printed(stored: str | None, text: str, failed: bool) -> None:
    assert result_text(result("a", stored)) == text
    assert has_failed(result("a", stored)) is failed


def test_a_result_that_is_marked_as_an_error_has_failed() -> None:
    assert has_failed(result("a", "fine", failed=True))
