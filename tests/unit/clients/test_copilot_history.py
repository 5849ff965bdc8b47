"""GitHub Copilot CLI: where its sessions are, and events of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypaware.clients.client import Source
from hypaware.clients.copilot.history import CopilotHistory
from hypaware.model.datasets import Row
from tests.support.history import rows_of, usage

PROVIDER = CopilotHistory()


def event(key: str, kind: str, parent: str | None = None, **data: Any) -> dict[str, Any]:
    return {"id": key, "parentId": parent, "timestamp": "2026-11-15T07:00:00.000Z", "type": kind, "data": data}


def read(folder: Path, *lines: Any) -> tuple[list[Row], dict[str, int]]:
    path = folder / "session-state" / "s1" / "events.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    rows, reading = rows_of(PROVIDER, path)
    return rows, dict(reading.skipped)


def test_sessions_of_all_versions_are_found(tmp_path: Path) -> None:
    top = tmp_path / ".copilot" / "session-state"
    names = ["a/events.jsonl", "b.jsonl"]
    for name in (*names, "a/workspace.yaml", "a/checkpoints/events.jsonl", "a/other.jsonl"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).touch()

    for environment in ({"HOME": str(tmp_path)}, {"HOME": "/nonexistent", "COPILOT_HOME": str(tmp_path / ".copilot")}):
        found = [each.path for each in PROVIDER.find(environment) if isinstance(each, Source)]
        assert sorted(found) == [top / name for name in names]
    assert [PROVIDER.session_of(top / name, b"") for name in names] == ["a", "b"]


def test_the_start_gives_folder_branch_and_version(tmp_path: Path) -> None:
    context = {"cwd": "/nonexistent/shop", "branch": "main", "headCommit": "0a1b", "gitRoot": "/nonexistent/shop"}
    start = event("e1", "session.start", sessionId="s1", copilotVersion="1.0", context=context)
    rows, _ = read(tmp_path, start, event("e2", "user.message", "e1", content="Look"))

    (row,) = rows
    assert (row["session_id"], row["cwd"], row["git_branch"]) == ("s1", "/nonexistent/shop", "main")
    assert (row["head_sha"], row["repo_root"], row["client_version"]) == ("0a1b", "/nonexistent/shop", "1.0")


def test_token_counts_go_to_the_message_of_their_call_once(tmp_path: Path) -> None:
    counts = {"apiCallId": "a1", "inputTokens": 10, "cacheReadTokens": 4, "cacheWriteTokens": 1, "outputTokens": 3}
    rows, _ = read(
        tmp_path,
        event("e1", "session.usage_record", usage=counts),
        event("e2", "assistant.message", content="One", apiCallId="a1"),
        event("e3", "assistant.message", content="Two", apiCallId="a1"),
    )

    assert dict(usage(rows)) == {
        "input_tokens": 5,
        "cache_read_tokens": 4,
        "cache_write_tokens": 1,
        "output_tokens": 3,
        "total_tokens": 13,
    }


def test_a_failed_tool_and_a_failed_call_are_errors(tmp_path: Path) -> None:
    rows, _ = read(
        tmp_path,
        event("e1", "assistant.message", toolRequests=[{"toolCallId": "c1", "name": "bash", "arguments": {"a": 1}}]),
        event("e2", "tool.execution_complete", "e1", toolCallId="c1", success=False, error={"message": "denied"}),
        event("e3", "session.error", "e2", errorType="query", message="400 bad"),
    )

    assert [(row["part_type"], row.get("content_text"), row.get("is_error")) for row in rows] == [
        ("tool_call", None, None),
        ("tool_result", "denied", True),
        ("error", "400 bad", True),
    ]
    assert rows[1]["tool_name"] == "bash"
    assert rows[2]["status"] == {"error_code": "query", "error_message": "400 bad"}


def test_messages_of_a_subagent_are_marked_and_links_lead_through_other_events(tmp_path: Path) -> None:
    rows, skipped = read(
        tmp_path,
        event("e1", "user.message", content="Look", attachments=[{"path": "a.py"}]),
        event("e2", "assistant.turn_start", "e1"),
        event("e3", "assistant.message", "e2", content="I look", parentToolCallId="c1"),
        event("e4", "dream", "e3"),
    )

    assert [row["previous_message_id"] for row in rows] == [[], ["e1"]]
    assert (rows[1]["agent_id"], rows[1]["is_sidechain"]) == ("c1", True)
    assert rows[0]["attributes"]["copilot"] == {"attachments": [{"path": "a.py"}]}
    assert skipped == {"bookkeeping": 1, "unknown_type:dream": 1}


def test_threads_that_run_side_by_side_are_each_linked_in_themselves(tmp_path: Path) -> None:
    def of(agent: str, *given: Any, **data: Any) -> dict[str, Any]:
        return event(*given, **data) | {"agentId": agent}

    rows, _ = read(
        tmp_path,
        event("e1", "assistant.message", content="Two agents"),
        of("A", "e2", "subagent.started", "e1", toolCallId="c1"),
        of("B", "e3", "subagent.started", "e2", toolCallId="c2"),
        of("A", "e4", "user.message", "e3", content="Do one"),
        of("B", "e5", "user.message", "e4", content="Do two"),
        of("A", "e6", "assistant.message", "e5", content="One is done", parentToolCallId="c1"),
        of("B", "e7", "assistant.message", "e6", content="Two is done", parentToolCallId="c2"),
        event("e8", "assistant.turn_end", "e7"),
        event("e9", "assistant.message", "e8", content="Both are done"),
        event("e10", "user.message", "e1", content="Went back"),
    )

    assert [(row["message_id"], row.get("agent_id"), row["previous_message_id"]) for row in rows] == [
        ("e1", None, []),
        ("e4", "c1", ["e1"]),
        ("e5", "c2", ["e1"]),
        ("e6", "c1", ["e4"]),
        ("e7", "c2", ["e5"]),
        ("e9", None, ["e1"]),
        ("e10", None, ["e1"]),
    ]
