"""Tool calls in a few words: the argument that says most, the plan or diff in it, and the text of a result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hypaware.render.edits import DiffLine, count_changes, list_changes
from hypaware.text import format_count

_TELLING = (
    *("command", "cmd", "pattern", "file_path", "notebook_path", "path", "query", "url", "description", "task_name"),
    *("prompt", "message", "skill", "subject", "question", "text", "input"),
)
"""Arguments that say what a call does, the most telling first."""
_PATHS = ("file_path", "notebook_path", "path")
_MAX_SUMMARY = 2000
_READERS = frozenset({"Read", "read_file", "NotebookRead"})
_LANGUAGES = {
    **{"bash": "bash", "sh": "bash", "zsh": "bash", "c": "c", "h": "c", "cpp": "cpp", "cc": "cpp", "hpp": "cpp"},
    **{"cs": "csharp", "css": "css", "diff": "diff", "patch": "diff", "go": "go", "graphql": "graphql", "ini": "ini"},
    **{"toml": "ini", "cfg": "ini", "java": "java", "js": "javascript", "mjs": "javascript", "jsx": "javascript"},
    **{
        "json": "json",
        "jsonl": "json",
        "ipynb": "json",
        "kt": "kotlin",
        "less": "less",
        "lua": "lua",
        "mk": "makefile",
    },
    **{"makefile": "makefile", "md": "markdown", "m": "objectivec", "pl": "perl", "php": "php", "py": "python"},
    **{"pyi": "python", "r": "r", "rb": "ruby", "rs": "rust", "scss": "scss", "sql": "sql", "swift": "swift"},
    **{"ts": "typescript", "tsx": "typescript", "vb": "vbnet", "wat": "wasm", "html": "xml", "svg": "xml"},
    **{"xml": "xml", "yml": "yaml", "yaml": "yaml"},
}
"""File suffix → the language as highlighters call it."""
_SCRIPT_COMMAND = re.compile(r'exec_command\(\s*\{\s*"?cmd"?\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
_DONE = {"completed": "[x]", "in_progress": "[>]"}
_EXIT_CODE = re.compile(r"^(?:Exit code:?|Process exited with code) ([0-9]+)", re.MULTILINE)
# What Codex prints before the output of a command.
_PREAMBLE = re.compile(
    r"\A(?:(?:Script completed|Chunk ID:|Exit code:|Wall time|Process exited|Original token)[^\n]*\n)+Output:\n+"
)
_SCRIPT_FAILED = "Script failed"
_TOOL_ERROR = re.compile(r"\A<tool_use_error>(.*)</tool_use_error>\Z", re.DOTALL)


class CallSummary(NamedTuple):
    name: str
    summary: str
    """One line."""
    changes: list[DiffLine] | None = None
    steps: tuple[str, ...] = ()
    """The lines of a plan or a to-do list."""


def summarize_call(name: str | None, args: Any, cwd: str | None = None) -> CallSummary:
    shown = name or "tool"
    if shown.startswith("mcp__"):
        shown = shown.removeprefix("mcp__").replace("__", ":", 1)
    steps = _list_steps(args)
    changes = list_changes(args)
    if steps:
        done = sum(line.startswith("[x]") for line in steps)
        return CallSummary(shown, f"{done} of {len(steps)} done", None, steps)
    summary = _tell(args, cwd)
    if changes is not None:
        added, removed = count_changes(changes)
        files = [line.text.partition(": ")[2] for line in changes if line.sign == "@" and " File: " in line.text]
        summary = f"{', '.join(files) if files else summary}  +{added} -{removed}"
    return CallSummary(shown, _one_line(summary), changes)


def cut_lines(lines: Sequence[str], limit: int | None) -> str:
    """Join the first lines, and say how many are left out."""
    if limit is None or len(lines) <= limit:
        return "\n".join(lines)
    return "\n".join([*lines[:limit], f"… {format_count(len(lines) - limit, 'more line')}"])


def result_text(part: Mapping[str, Any]) -> str:
    """Return the text of a result as the tool printed it, without what the client added."""
    text = _unwrap(part["text"] or "")
    if found := _TOOL_ERROR.match(text):
        return found[1]
    return text if has_failed(part) else _PREAMBLE.sub("", text, count=1)


def has_failed(part: Mapping[str, Any]) -> bool:
    """Return whether a result is an error. Codex does not mark a failed command; its first lines say it."""
    if part["is_error"]:
        return True
    text = _unwrap(part["text"] or "")[:300]
    found = _EXIT_CODE.search(text)
    return text.startswith(_SCRIPT_FAILED) or (found is not None and int(found[1][:9]) != 0)


def _unwrap(text: str) -> str:
    """Return the text in the JSON with which Codex stores some results."""
    if not text.startswith(('[{"', '{"output"')):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        value = [{"text": value.get("output")}]
    texts = [each["text"] for each in value if isinstance(each, dict) and isinstance(each.get("text"), str)]
    return "\n".join(texts) if len(texts) == len(value) else text


def _list_steps(args: Any) -> tuple[str, ...]:
    if not isinstance(args, Mapping):
        return ()
    listed = args.get("todos") or args.get("plan")
    if not isinstance(listed, list):
        return ()
    steps = []
    for each in listed:
        text = each.get("content") or each.get("step") if isinstance(each, Mapping) else None
        if not isinstance(text, str):
            return ()
        steps.append(f"{_DONE.get(str(each.get('status')), '[ ]')} {_one_line(text)}")
    return tuple(steps)


def _tell(args: Any, cwd: str | None) -> str:
    if isinstance(args, str):
        commands = [_parse_literal(found) for found in _SCRIPT_COMMAND.findall(args)]
        return "; ".join(commands) if commands else args
    if not isinstance(args, Mapping):
        return "" if args is None else _compact(args)
    for name in _TELLING:
        value = args.get(name)
        if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
            # ["bash", "-lc", "make"]
            return value[-1] if len(value) == 3 and value[1] in ("-c", "-lc") else " ".join(value)
        if isinstance(value, str) and value:
            if name in _PATHS:
                return _shorten_path(value, cwd)
            if name == "pattern" and isinstance(where := args.get("path"), str):
                return f"{value} in {_shorten_path(where, cwd)}"
            return value
    values = list(args.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return _compact(args) if args else ""


def _parse_literal(literal: str) -> str:
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:
        return literal


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)[: _MAX_SUMMARY + 1]
    except RecursionError:
        return "…"


def _shorten_path(path: str, cwd: str | None) -> str:
    inside = cwd.rstrip("/") + "/" if cwd else None
    return path[len(inside) :] if inside and path.startswith(inside) and len(path) > len(inside) else path


def _one_line(text: str) -> str:
    cut = text[: _MAX_SUMMARY + 1]
    line = " ".join(cut.split())
    return line if len(text) <= _MAX_SUMMARY else f"{line[:_MAX_SUMMARY]}…"


def language_of(part: Mapping[str, Any]) -> str | None:
    """Return the language of what a tool call reads, or None if it reads no file or one of another language."""
    args = part["tool_args"]
    if part["tool_name"] not in _READERS or not isinstance(args, Mapping):
        return None
    path = next((args[name] for name in _PATHS if isinstance(args.get(name), str)), "")
    return _LANGUAGES.get(path.rpartition("/")[2].rpartition(".")[2].lower())
