"""Edits as diffs, from the arguments of the tools of both clients."""

from __future__ import annotations

import pytest

from hypaware.render.edits import count_changes, list_changes

PATCH = """*** Begin Patch
*** Update File: calc.py
@@ def add
 def add(a, b):
+    # sum
-    return b + a
     return a + b
*** Add File: notes.txt
+hello
*** End Patch
"""
PATCHED = [
    ("@", "Update File: calc.py"),
    ("@", "def add"),
    (" ", "def add(a, b):"),
    ("+", "    # sum"),
    ("-", "    return b + a"),
    (" ", "    return a + b"),
    ("@", "Add File: notes.txt"),
    ("+", "hello"),
]


def test_an_edit_shows_the_changed_lines_with_some_around_them() -> None:
    before = "\n".join(f"line {number}" for number in range(20))

    found = list_changes({"file_path": "x", "old_string": before, "new_string": before.replace("line 10", "changed")})

    assert found == [
        *((" ", f"line {number}") for number in (7, 8, 9)),
        ("-", "line 10"),
        ("+", "changed"),
        *((" ", f"line {number}") for number in (11, 12, 13)),
    ]


def test_several_edits_are_separated() -> None:
    edits = [{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": ""}]

    assert list_changes({"file_path": "x", "edits": edits}) == [("-", "a"), ("+", "b"), ("@", ""), ("-", "c")]


def test_a_written_file_is_all_new() -> None:
    found = list_changes({"file_path": "x", "content": "a\nb\n"})

    assert found == [("+", "a"), ("+", "b")]
    assert count_changes(found) == (2, 0)


@pytest.mark.parametrize(
    "args",
    [
        PATCH,
        {"input": PATCH},
        {"command": ["apply_patch", PATCH]},
        {"cmd": f"apply_patch <<'EOF'\n{PATCH}EOF\n"},
        'const r = await tools.apply_patch("' + PATCH.replace("\n", "\\n") + '");\ntext(r);',
    ],
    ids=["text", "input", "list", "heredoc", "script"],
)
def test_a_patch_is_found_wherever_the_client_puts_it(args: object) -> None:
    assert list_changes(args) == PATCHED


@pytest.mark.parametrize(
    "args",
    [
        None,
        7,
        [],
        {"command": "ls"},
        {"old_string": "a"},
        {"edits": ["x"]},
        {"edits": [{"old_string": 1}]},
        'apply_patch("\\x")',
        {"command": []},
    ],
)
def test_other_arguments_are_no_edit(args: object) -> None:
    assert list_changes(args) is None


def test_a_huge_edit_is_not_compared_line_by_line() -> None:
    """Comparing these lines would take hours."""
    lines = [f"line {number % 7}" for number in range(200_000)]

    found = list_changes({"old_string": "\n".join(lines), "new_string": "\n".join(reversed(lines))})

    assert found is not None
    assert count_changes(found) == (200_000, 200_000)
