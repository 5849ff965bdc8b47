"""Qwen Code: where its sessions are, and lines of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients.client import Source
from hypaware.clients.qwen.history import QwenHistory
from hypaware.model.datasets import Row
from tests.support.history import rows_of

PROVIDER = QwenHistory()


def line(uuid: str, kind: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    shared = {"sessionId": "s1", "timestamp": "2026-11-15T07:00:00.000Z", "cwd": "/nonexistent/shop", "version": "1.0"}
    return {"uuid": uuid, "parentUuid": parent, "type": kind, **shared, **more}


def says(uuid: str, text: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return line(uuid, "user", parent, message={"role": "user", "parts": [{"text": text}]}, **more)


def read(folder: Path, *lines: Any) -> tuple[list[Row], dict[str, int], list[Any]]:
    path = folder / "s1.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    rows, reading = rows_of(PROVIDER, path)
    return rows, dict(reading.skipped), reading.titles


@pytest.mark.parametrize(
    ("variables", "top"),
    [
        ({}, "user/.qwen"),
        ({"QWEN_HOME": "{tmp}/mine"}, "mine"),
        ({"QWEN_HOME": "~/mine"}, "user/mine"),
        ({"QWEN_HOME": "{tmp}/mine", "QWEN_RUNTIME_DIR": "{tmp}/other"}, "other"),
    ],
)
def test_sessions_and_subagents_are_found(tmp_path: Path, variables: dict[str, str], top: str) -> None:
    names = ["projects/-shop/chats/a.jsonl", "projects/-shop/subagents/a/agent-b.jsonl", "tmp/0a1b/chats/c.jsonl"]
    for name in (*names, "projects/-shop/chats/a.runtime.json", "projects/-shop/memory/notes.jsonl"):
        (tmp_path / top / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / top / name).touch()
    environment = {name: value.format(tmp=tmp_path) for name, value in variables.items()}

    found = list(PROVIDER.find({"HOME": str(tmp_path / "user"), **environment}))
    assert [each.path for each in found if isinstance(each, Source)] == [tmp_path / top / name for name in names]
    assert len(found) == len(names)


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    (found,) = PROVIDER.find({"HOME": str(tmp_path)})
    assert not isinstance(found, Source)
    assert found.name == "no_history"


def test_links_lead_through_lines_without_rows(tmp_path: Path) -> None:
    notice = line("b", "system", "a", subtype="notification", systemPayload={"displayText": "x"})
    rows, skipped, _ = read(tmp_path, says("a", "One"), notice, says("c", "Two", "b"))

    assert [row["previous_message_id"] for row in rows] == [[], ["a"]]
    assert skipped == {"bookkeeping": 1}


def test_titles_of_the_user_and_of_the_client_are_kept_apart(tmp_path: Path) -> None:
    auto = line(
        "b", "system", "a", subtype="custom_title", systemPayload={"customTitle": "Auto", "titleSource": "auto"}
    )
    own = line("c", "system", "b", subtype="custom_title", systemPayload={"customTitle": "Mine"})
    _, _, titles = read(tmp_path, says("a", "One"), auto, own)

    assert [(each.kind, each.title, each.session_id) for each in titles] == [
        ("client", "Auto", "s1"),
        ("user", "Mine", "s1"),
    ]


def test_a_failed_call_and_a_failed_tool_are_errors(tmp_path: Path) -> None:
    event = {"event.name": "qwen-code.api_error", "error_message": "no", "error_type": "RateLimit", "model": "m"}
    answer = {"functionResponse": {"id": "c1", "name": "shell", "response": {"error": "it failed"}}}
    rows, _, _ = read(
        tmp_path,
        says("a", "One"),
        line("b", "system", "a", subtype="ui_telemetry", systemPayload={"uiEvent": event}),
        line("c", "tool_result", "b", message={"parts": [answer]}, toolCallResult={"status": "error"}),
    )

    assert [(row["part_type"], row["content_text"], row.get("is_error")) for row in rows[1:]] == [
        ("error", "no", True),
        ("tool_result", "it failed", True),
    ]
    assert rows[1]["status"] == {"error_code": "RateLimit", "error_message": "no"}
    assert rows[2]["attributes"]["qwen"] == {"tool_call_result": {"status": "error"}}


def test_the_lines_of_a_subagent_belong_to_its_session(tmp_path: Path) -> None:
    rows, _, _ = read(tmp_path, says("a", "Look around", agentId="explore-1", isSidechain=True))

    assert (rows[0]["session_id"], rows[0]["agent_id"], rows[0]["is_sidechain"]) == ("s1", "explore-1", True)


def test_unknown_lines_and_parts_are_counted(tmp_path: Path) -> None:
    strange = line("b", "user", "a", message={"role": "user", "parts": [{"hologram": {}}, 7, {"text": "Two"}]})
    rows, skipped, _ = read(tmp_path, says("a", "One"), strange, line("c", "dream"), line("d", "user"))

    assert [row["content_text"] for row in rows] == ["One", "Two"]
    assert skipped == {"unknown_type:hologram": 1, "bad_part": 1, "unknown_type:dream": 1, "no_message": 1}


def test_reasoning_that_is_not_part_of_the_output_is_added_to_it(tmp_path: Path) -> None:
    counts = {"promptTokenCount": 10, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 15}
    rows, _, _ = read(tmp_path, line("a", "assistant", message={"parts": [{"text": "x"}]}, usageMetadata=counts))

    assert rows[0]["attributes"]["usage"]["output_tokens"] == 5


@pytest.mark.parametrize(
    ("meta", "model"),
    [(b'{"model": "qwen3-max"}', "qwen3-max"), (b'{"model": 1}', None), (b'{"mod', None), (b"[]", None)],
)
def test_the_model_of_a_subagent_is_in_the_file_next_to_its_own(tmp_path: Path, meta: bytes, model: str | None) -> None:
    path = tmp_path / "subagents/s1/agent-a.jsonl"
    path.parent.mkdir(parents=True)
    path.with_suffix(".meta.json").write_bytes(meta)
    answer = line("a1", "assistant", "u1", message={"role": "model", "parts": [{"text": "Done."}]}, agentId="a")
    path.write_text("".join(json.dumps(each) + "\n" for each in (says("u1", "Do it."), answer)))
    assert [row.get("model") for row in rows_of(PROVIDER, path)[0]] == [None, model]
