"""Lines of Claude Code's transcripts, column by column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients.claude.history import read_session_records
from tests.support.claude_transcripts import (
    OTHER_SESSION,
    PROVIDER,
    SESSION,
    answers,
    as_bytes,
    at,
    calls,
    imported,
    line,
    row,
    rows,
    says,
    user,
)
from tests.support.history import rows_of

STORED = {0: "2026-11-15T08:00:00.000000Z", 1: "2026-11-15T08:00:01.000000Z"}


def test_a_users_text_is_one_part(tmp_path: Path) -> None:
    made = row(tmp_path, user("u1", "Hello"))
    assert made.pop("attributes")["client"] == {"name": "claude", "version": "2.1.325"}
    assert made == {
        "gateway_id": "gateway-1",
        "schema_version": 7,
        "session_id": SESSION,
        "provider": "anthropic",
        "conversation_source": "claude",
        "client_name": "claude",
        "conversation_started_at": STORED[0],
        "cwd": "/nonexistent/project",
        "git_branch": "main",
        "client_version": "2.1.325",
        "is_sidechain": False,
        "message_id": "u1",
        "provider_uuid": "u1",
        "previous_message_id": [],
        "message_index": 0,
        "message_created_at": STORED[0],
        "role": "user",
        "part_id": "u1#0",
        "part_index": 0,
        "part_type": "text",
        "provider_type": "user",
        "provider_subtype": "text",
        "content_text": "Hello",
        "raw_frame": {"type": "user", "uuid": "u1", "timestamp": at(0)},
        "date": "2026-11-15",
    }


def test_rows_record_that_they_were_imported_and_from_where(tmp_path: Path) -> None:
    gateway = row(tmp_path, user("u1", "Hello"))["attributes"]["gateway"]
    assert (gateway["source"], gateway["native_id"]) == ("backfill", SESSION)
    assert len(gateway["source_path_hash"]) == 16
    assert gateway.keys() == {"source", "native_id", "source_path_hash"}


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("logicalParentUuid", "logical_parent_uuid"),
        ("sourceToolAssistantUUID", "source_tool_assistant_uuid"),
        ("requestId", "request_id"),
        ("promptId", "prompt_id"),
        ("agentId", "agent_id"),
        ("subtype", "provider_subtype"),
        ("entrypoint", "entrypoint"),
        ("userType", "user_type"),
        ("permissionMode", "permission_mode"),
        ("hookEvent", "hook_event"),
    ],
)
def test_a_field_becomes_its_column(tmp_path: Path, field: str, column: str) -> None:
    assert row(tmp_path, user("u1", "Hello") | {field: "that"})[column] == "that"


@pytest.mark.parametrize("field", ["isSidechain", "is_sidechain"])
def test_a_sidechain_is_recognized_in_both_spellings(tmp_path: Path, field: str) -> None:
    said = {name: value for name, value in user("u1", "Hello").items() if name != "isSidechain"}
    assert row(tmp_path, said | {field: True})["is_sidechain"] is True


@pytest.mark.parametrize("field", ["isCompactSummary", "is_compact_summary"])
def test_a_compact_summary_is_recognized_in_both_spellings(tmp_path: Path, field: str) -> None:
    assert row(tmp_path, user("u1", "Hello") | {field: True})["is_compact_summary"] is True


@pytest.mark.parametrize("field", ["compactMetadata", "compact_metadata"])
def test_compaction_metadata_is_kept(tmp_path: Path, field: str) -> None:
    assert row(tmp_path, user("u1", "Hello") | {field: {"trigger": "auto"}})["compact_metadata"] == {"trigger": "auto"}


def test_the_type_of_an_attachment_is_recorded(tmp_path: Path) -> None:
    attached = {"type": "hook_additional_context", "hookEvent": "PostToolUse"}
    made = row(tmp_path, user("u1", "Hello", attachment=attached))
    assert (made["attachment_type"], made["hook_event"]) == ("hook_additional_context", "PostToolUse")


def test_the_raw_frame_holds_ids_and_never_text(tmp_path: Path) -> None:
    said = says("a1", "secret", "u1", subtype="x", logicalParentUuid="l1", toolUseResult="secret", other="secret")
    frame = row(tmp_path, said)["raw_frame"]
    assert frame == {
        "uuid": "a1",
        "parent_uuid": "u1",
        "logical_parent_uuid": "l1",
        "type": "assistant",
        "subtype": "x",
        "message_id": "msg_1",
        "timestamp": at(1),
    }


def test_only_lines_of_the_model_have_a_model(tmp_path: Path) -> None:
    asked, said = rows(tmp_path, user("u1", "Hello"), says("a1", "Hi", "u1"))
    assert "model" not in asked
    assert said["model"] == "claude-opus-5-5"


def test_a_role_comes_from_the_message_or_the_line_type(tmp_path: Path) -> None:
    named = line("user", "u1", message={"role": "system", "content": "a"})
    typed = line("assistant", "u2", second=1, message={"content": "b"})
    assert [each["role"] for each in rows(tmp_path, named, typed)] == ["system", "assistant"]


def test_the_facts_of_a_session_come_from_its_first_lines(tmp_path: Path) -> None:
    """Bookkeeping lines count too."""
    made = rows(
        tmp_path,
        line("system", "s1", version="2.1.1", cwd="/nonexistent/first", gitBranch=""),
        user("u1", "a", version="2.1.2", cwd="/nonexistent/second", gitBranch="main"),
        user("u2", "b", version="2.1.3", cwd="/nonexistent/third", gitBranch="other"),
    )
    values = {(each["client_version"], each["cwd"], each["git_branch"]) for each in made}
    assert values == {("2.1.1", "/nonexistent/first", "main")}


def test_lines_are_sorted_by_time_and_those_without_one_come_last(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        user("u1", "no time", None, None),
        user("u2", "later", None, 9),
        user("u3", "same", None, 5),
        user("u4", "same, after it in the file", None, 5),
    )
    assert [each["message_id"] for each in made] == ["u3", "u4", "u2", "u1"]
    assert [each["message_index"] for each in made] == [0, 1, 2, 3]


def test_times_are_compared_as_instants(tmp_path: Path) -> None:
    early = user("u1", "a") | {"timestamp": "2026-11-15T09:30:00+02:00"}
    made = rows(tmp_path, user("u2", "b"), early)
    assert [each["message_created_at"] for each in made] == ["2026-11-15T07:30:00.000000Z", STORED[0]]
    assert {each["conversation_started_at"] for each in made} == {"2026-11-15T07:30:00.000000Z"}


def test_a_session_starts_with_its_first_message_not_with_bookkeeping(tmp_path: Path) -> None:
    queued = line("queue-operation", None, None, 0)
    assert row(tmp_path, queued, user("u1", "a", None, 1))["conversation_started_at"] == STORED[1]


def test_a_message_without_a_time_gets_the_start_of_the_session(tmp_path: Path) -> None:
    made = rows(tmp_path, user("u1", "a", None, 1), user("u2", "b", None, None))
    assert made[1]["message_created_at"] == STORED[1]
    assert made[1]["attributes"]["gateway"]["time_source"] == "session_start"
    assert "time_source" not in made[0]["attributes"]["gateway"]


def test_a_session_without_any_time_gets_the_time_of_the_file(tmp_path: Path) -> None:
    made, _ = imported(tmp_path, user("u1", "a", None, None), mtime_ns=1_792_051_200_123_456_789)
    assert made[0]["message_created_at"] == made[0]["conversation_started_at"] == "2026-10-15T08:00:00.123456Z"
    assert made[0]["attributes"]["gateway"]["time_source"] == "file_mtime"


def test_an_impossible_file_time_is_ignored(tmp_path: Path) -> None:
    made, reading = imported(tmp_path, user("u1", "a", None, None), mtime_ns=2**63 * 10**9)
    assert made == []
    assert reading.skipped == {"no_time": 1}


def test_every_session_of_a_file_is_an_exchange_of_its_own(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        user("u1", "a", None, 0),
        user("v1", "b", None, 1, sessionId=OTHER_SESSION),
        user("u2", "c", "u1", 2),
    )
    assert [(each["session_id"], each["message_index"]) for each in made] == [
        (SESSION, 0),
        (SESSION, 1),
        (OTHER_SESSION, 0),
    ]
    assert {each["attributes"]["gateway"]["native_id"] for each in made} == {SESSION, OTHER_SESSION}


def test_the_previous_message_is_the_nearest_ancestor_with_a_row(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        user("u1", "a"),
        line("attachment", "x1", "u1", 1),
        line("system", "x2", "x1", 2),
        user("empty", "", "x2", 3),
        says("a1", "b", "empty", 4),
        user("side", "c", None, 5),
    )
    assert [each["previous_message_id"] for each in made] == [[], ["u1"], []]


def test_the_previous_message_is_found_across_a_compaction(tmp_path: Path) -> None:
    made = rows(
        tmp_path,
        user("u1", "a"),
        line("system", "c1", None, 2, subtype="compact_boundary", logicalParentUuid="u1"),
        user("u2", "summary", "c1", 1, isCompactSummary=True),
        user("u3", "earlier by its time, later in its thread", "u2", 0.5),
    )
    assert {each["message_id"]: each["previous_message_id"] for each in made} == {
        "u1": [],
        "u2": ["u1"],
        "u3": ["u2"],
    }


def test_an_unknown_ancestor_leads_to_no_message(tmp_path: Path) -> None:
    made = rows(tmp_path, line("system", "x1", "gone"), user("u1", "a", "x1"), user("u2", "b", "gone too", 1))
    assert [each["previous_message_id"] for each in made] == [[], []]


def test_a_result_has_the_name_of_the_tool_that_was_called(tmp_path: Path) -> None:
    failed = answers("c2", "no such file", is_error=True)
    made = rows(
        tmp_path,
        says("a1", calls("c1", "Read", path="x"), None, 0, requestId="req_1"),
        user("u1", answers("c1"), "a1", 1, toolUseResult={"file": {"content": "x"}}),
        says("a2", calls("c2", "Edit"), "u1", 2, api="msg_2"),
        user("u2", failed, "a2", 3, toolUseResult="Error: no such file"),
    )
    call, result, _, error = made
    assert (call["part_type"], call["tool_name"], call["tool_call_id"]) == ("tool_call", "Read", "c1")
    assert (call["tool_args"], call["caller_type"], call["request_id"]) == ({"path": "x"}, "direct", "req_1")
    assert (result["part_type"], result["tool_name"], result["tool_result_for"]) == ("tool_result", "Read", "c1")
    assert result["status"] == {"tool_status": "success"}
    assert result["attributes"]["claude"] == {"tool_use_result": {"file": {"content": "x"}}}
    assert (error["tool_name"], error["status"], error["is_error"]) == ("Edit", {"tool_status": "error"}, True)
    assert error["attributes"]["claude"] == {"tool_use_result": "Error: no such file"}


def test_a_failed_request_is_an_error_without_a_model(tmp_path: Path) -> None:
    failed = says(
        "a1",
        "API Error: 400 wrong",
        "u1",
        api="local",
        model="<synthetic>",
        output=0,
        stop="stop_sequence",
        isApiErrorMessage=True,
        apiErrorType="invalid_request_error",
        error="unknown",
    )
    made = row(tmp_path, failed)
    assert (made["part_type"], made["provider_subtype"], made["is_error"]) == ("error", "error", True)
    assert made["content_text"] == "API Error: 400 wrong"
    assert made["status"] == {"error_code": "invalid_request_error", "error_message": "API Error: 400 wrong"}
    assert "model" not in made
    assert "usage" not in made["attributes"]


@pytest.mark.parametrize(
    ("said", "code"),
    [({"error": "rate_limit"}, "rate_limit"), ({"apiErrorStatus": 529}, "529"), ({"error": "unknown"}, None)],
)
def test_an_error_has_the_most_specific_code(tmp_path: Path, said: dict[str, Any], code: str | None) -> None:
    failed = says("a1", "API Error", api="local", model="<synthetic>", isApiErrorMessage=True, **said)
    assert row(tmp_path, failed)["status"].get("error_code") == code


def test_a_synthetic_message_is_text_without_a_model_or_usage(tmp_path: Path) -> None:
    made = row(tmp_path, says("a1", "No response requested.", model="<synthetic>", output=0))
    assert (made["part_type"], made["content_text"]) == ("text", "No response requested.")
    assert "model" not in made
    assert "usage" not in made["attributes"]
    assert "is_error" not in made


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("queue-operation", {}),
        ("attachment", {"uuid": "x1"}),
        ("system", {"uuid": "x1", "content": "Compacted"}),
        ("summary", {"sessionId": None}),
        ("file-history-snapshot", {"sessionId": None}),
        ("file-history-of-tomorrow", {"sessionId": None}),
        ("cost-state", {}),
        ("progress", {"uuid": "x1"}),
        ("api-request", {}),
        ("api-request-blob", {"message": {"role": "user", "content": "in the log"}}),
        ("api-request-of-tomorrow", {"uuid": "x1", "message": {"role": "user", "content": "in the log"}}),
    ],
)
def test_bookkeeping_lines_make_no_rows(tmp_path: Path, kind: str, more: dict[str, Any]) -> None:
    made, reading = imported(tmp_path, line(kind, None) | more)
    assert made == []
    assert reading.skipped == {"bookkeeping": 1}


def test_an_unknown_type_of_line_is_counted_by_its_name(tmp_path: Path) -> None:
    made, reading = imported(tmp_path, user("u1", "a"), line("hologram", "x1"), line("\x1b[2J" + "x" * 90, None))
    assert len(made) == 1
    assert reading.skipped == {"unknown_type:hologram": 1, "unknown_type:??2J" + "x" * 36: 1}


def test_many_unknown_types_share_one_reason(tmp_path: Path) -> None:
    _, reading = imported(tmp_path, *(line(f"kind-{number}", None) for number in range(100)))
    assert sum(reading.skipped.values()) == 100
    assert reading.skipped["unknown_type:other"] == 60


def test_an_unknown_type_of_line_with_a_message_is_a_message(tmp_path: Path) -> None:
    said = line("whisper", "w1", message={"role": "assistant", "content": "psst"})
    made = row(tmp_path, said)
    assert (made["provider_type"], made["role"], made["content_text"]) == ("whisper", "assistant", "psst")


def test_system_prompt_and_tools_are_on_the_first_response_that_used_them(tmp_path: Path) -> None:
    def shape(name: str, text: str) -> dict[str, Any]:
        system = [{"type": "text", "text": "You are"}, {"type": "text", "text": text}]
        return line("api-request-shape", None, shapeHash=name, shape={"system": system, "tools": [{"name": "Bash"}]})

    def request(name: str, of: str) -> dict[str, Any]:
        return line("api-request", None, id=name, shapeHash=of)

    made = rows(
        tmp_path,
        shape("s1", "kind."),
        request("r1", "s1"),
        user("u1", "a"),
        says("a1", "b", "u1", 1, requestRef="r1"),
        says("a2", "c", "a1", 2, requestRef="r1"),
        request("r2", "s1"),
        says("a3", "d", "a2", 3, api="msg_2", requestRef="r2"),
        shape("s2", "terse."),
        request("r3", "s2"),
        says("a4", "e", "a3", 4, api="msg_3", requestRef="r3"),
        says("a5", "f", "a4", 5, api="msg_4", requestRef="unknown"),
    )
    values = {each["message_id"]: (each["system_text"], each["tools"]) for each in made if "system_text" in each}
    assert values == {"a1": ("You are\nkind.", [{"name": "Bash"}]), "a4": ("You are\nterse.", [{"name": "Bash"}])}


def test_a_subagents_rows_name_the_call_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "agent-a1b2.meta.json").write_text(json.dumps({"agentType": "Explore", "toolUseId": "toolu_1"}))
    made, _ = imported(tmp_path, user("u1", "a", toolUseResult="x", agentId="a1b2"), name="agent-a1b2.jsonl")
    assert made[0]["attributes"]["claude"] == {"tool_use_result": "x", "spawned_by_tool_use_id": "toolu_1"}


@pytest.mark.parametrize("meta", [b"", b"{", b"[]", b'{"toolUseId": 7}', b"\xff", b"{}" + b" " * (1 << 17) + b"x"])
def test_an_unreadable_subagent_file_is_ignored(tmp_path: Path, meta: bytes) -> None:
    (tmp_path / "agent-a1b2.meta.json").write_bytes(meta)
    made, reading = imported(tmp_path, user("u1", "a"), name="agent-a1b2.jsonl")
    assert "claude" not in made[0]["attributes"]
    assert not reading.skipped


@pytest.fixture
def home(tmp_path: Path) -> Path:
    noted = tmp_path / "hyp" / "clients" / "claude" / "session-context.jsonl"
    noted.parent.mkdir(parents=True)
    first = {
        "session_id": SESSION,
        "cwd": "/nonexistent/noted",
        "git_branch": "noted",
        "git_remote": "https://me:secret@example.org/repo.git",
        "head_sha": "abc",
        "repo_root": "/nonexistent",
        "at": at(0),
    }
    noted.write_bytes(as_bytes([b"garbage\n", b"[]\n", first, first | {"git_branch": "later"}, {"session_id": 7}]))
    return tmp_path / "hyp"


def test_a_session_context_record_overrides_the_lines(tmp_path: Path, home: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(as_bytes([user("u1", "a"), user("v1", "b", sessionId=OTHER_SESSION)]))
    noted, unnoted = rows_of(PROVIDER, tmp_path / "s.jsonl", environment={"HOME": "/x", "HYP_HOME": str(home)})[0]
    assert {name: noted[name] for name in ("cwd", "git_branch", "git_remote", "head_sha", "repo_root")} == {
        "cwd": "/nonexistent/noted",
        "git_branch": "noted",
        "git_remote": "https://example.org/repo.git",
        "head_sha": "abc",
        "repo_root": "/nonexistent",
    }
    assert (unnoted["cwd"], unnoted["git_branch"]) == ("/nonexistent/project", "main")
    assert "head_sha" not in unnoted


def test_session_context_records_that_change_are_read_again(tmp_path: Path, home: Path) -> None:
    environment = {"HOME": "/x", "HYP_HOME": str(home)}
    assert read_session_records(environment)[SESSION]["git_branch"] == "noted"
    path = home / "clients" / "claude" / "session-context.jsonl"
    path.write_bytes(as_bytes([{"session_id": SESSION, "git_branch": "again"}]))
    assert read_session_records(environment) == {SESSION: {"git_branch": "again"}}
    path.unlink()
    assert read_session_records(environment) == {}


def test_session_context_records_are_in_the_default_home_without_hyp_home(tmp_path: Path, home: Path) -> None:
    home.rename(tmp_path / ".hyp")
    assert SESSION in read_session_records({"HOME": str(tmp_path)})


def queued(uuid: str, prompt: Any, parent: str, second: float, **more: Any) -> dict[str, Any]:
    """Return the line that Claude Code writes when it reads a prompt that was typed while it worked."""
    attachment = {"type": "queued_command", "prompt": prompt, "source_uuid": f"{uuid}-s", "commandMode": "prompt"}
    rendered = [{"content": f"<system-reminder>\nThe user sent a new message: {prompt}\n</system-reminder>"}]
    more = {"attachment": attachment | more.pop("attachment", {}), **more}
    return line("attachment", uuid, parent, second, rendered=rendered, renderedRole="system", **more)


@pytest.mark.hazard(104)
def test_a_prompt_typed_while_the_agent_works_is_a_users_row(tmp_path: Path) -> None:
    transcript = [
        user("u1", "Run it"),
        says("a1", calls("c1"), "u1", 1),
        user("r1", answers("c1"), "a1", 5),
        line("attachment", "x1", "r1", 5, attachment={"type": "date", "date": "2026-11-15"}),
        queued("q1", "Also count to three.", "x1", 3),
        says("a2", "One, two, three.", "q1", 6, api="msg_2"),
    ]
    made = {each["message_id"]: each for each in rows(tmp_path, *transcript)}
    assert made.keys() == {"u1", "a1", "r1", "q1", "a2"}
    prompt = made["q1"]
    assert (prompt["role"], prompt["part_type"], prompt["content_text"]) == ("user", "text", "Also count to three.")
    assert (prompt["provider_type"], prompt["attachment_type"]) == ("attachment", "queued_command")
    assert prompt["message_created_at"] == "2026-11-15T08:00:03.000000Z"
    assert (prompt["previous_message_id"], made["a2"]["previous_message_id"]) == (["r1"], ["q1"])


@pytest.mark.hazard(104)
def test_a_queued_prompt_may_hold_an_image(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    made = rows(tmp_path, user("u1", "Run it"), queued("q1", [{"type": "text", "text": "Like this:"}, image], "u1", 1))
    assert [(each["message_id"], each["part_type"]) for each in made[1:]] == [("q1", "text"), ("q1", "image")]


@pytest.mark.hazard(104)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_queued_prompt_that_is_also_an_ordinary_line_is_one_row(tmp_path: Path, is_first: bool) -> None:
    both = [queued("q1", "Also this.", "u1", 2), user("q1-s", "Also this.", "u1", 3)]
    made = rows(tmp_path, user("u1", "Run it"), *(both if is_first else reversed(both)))
    assert [each["content_text"] for each in made] == ["Run it", "Also this."]


@pytest.mark.parametrize(
    "attachment",
    [
        {"commandMode": "task-notification"},
        {"origin": {"kind": "auto-continuation"}},
        {"isMeta": True},
        {"carriedByCompaction": True},
        {"prompt": ""},
        {"prompt": None},
        {"prompt": 7},
    ],
)
def test_a_queued_command_that_the_user_did_not_type_makes_no_row(tmp_path: Path, attachment: dict[str, Any]) -> None:
    made = rows(tmp_path, user("u1", "Run it"), queued("q1", "A task ended.", "u1", 1, attachment=attachment))
    assert [each["message_id"] for each in made] == ["u1"]
