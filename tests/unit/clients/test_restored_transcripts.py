"""A recorded session becomes a transcript again: for its own client with the same rows, for another one without loss
of what was said."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.clients.claude.transcript import ClaudeTranscript, name_project_folder
from hypaware.clients.client import Provider, TranscriptWriter
from hypaware.clients.codex.rollout_writer import CodexRollout
from hypaware.clients.copilot.history import CopilotHistory
from hypaware.clients.gemini.history import GeminiHistory
from hypaware.clients.opencode.history import OpenCodeHistory
from hypaware.clients.qwen.history import QwenHistory
from hypaware.clients.recorded_session import IMAGE_NOTE, NOT_RECORDED, RecordedSession, list_carried_parts
from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.model.datasets import complete_row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support import claude_transcripts, codex_rollouts, exchange_samples
from tests.support.claude_transcripts import SESSION, answers, calls, says, user
from tests.support.client_samples import FIXTURES, copy_sample
from tests.support.history import GATEWAY_ID, readable
from tests.support.opencode_database import make_database
from tests.support.restored_sessions import Rows, by_session, differences, read_rows, write_files
from tests.support.strategies import json_values

NEW_ID = "33333333-3333-4333-8333-333333333333"
WRITERS: Mapping[str, tuple[TranscriptWriter, Provider]] = {
    "claude": (ClaudeTranscript(), claude_transcripts.PROVIDER),
    "codex": (CodexRollout(), codex_rollouts.PROVIDER),
}
OTHERS: Mapping[str, Provider] = {
    "copilot": CopilotHistory(),
    "gemini": GeminiHistory(),
    "opencode": OpenCodeHistory(),
    "qwen": QwenHistory(),
}
EXPECTED_DIFFERENCES = {
    # The lines between messages are not recorded, nor is the request log with the system prompt and the tools. Two old
    # samples of subagents hold a message of the session and one of another.
    "claude": {"parent_uuid", "raw_frame", "system_text", "tools", "message_index", "conversation_started_at"},
    # Reasoning is not among the items.
    "codex": {"message_index", "previous_message_id"},
}


def read_samples(client: str, folder: Path) -> Rows:
    provider = WRITERS[client][1] if client in WRITERS else OTHERS[client]
    if client == "claude":
        return read_rows(provider, claude_transcripts.unpacked(folder))
    if client == "opencode":
        folder.mkdir()
        return read_rows(provider, [make_database(folder)])
    if client != "codex":
        return read_rows(provider, [copy_sample(folder, each) for each in sorted((FIXTURES / client).rglob("*.jsonl"))])
    folder.mkdir()
    for name in codex_rollouts.sample_names():
        (folder / name).write_bytes(codex_rollouts.sample(name))
    return read_rows(provider, sorted(folder.iterdir()))


def restored(client: str, session: RecordedSession, folder: Path) -> tuple[Rows, Counter[str]]:
    writer, provider = WRITERS[client]
    transcript = writer.restore(session, {"HOME": str(folder)})
    return read_rows(provider, write_files(transcript)), transcript.losses


def claude_session(folder: Path, *lines: Any) -> RecordedSession:
    path = folder / f"{SESSION}.jsonl"
    path.write_bytes(claude_transcripts.as_bytes(lines))
    return by_session(read_rows(claude_transcripts.PROVIDER, [path]))[SESSION]


def lines_of(transcript: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in transcript.files[-1].content.splitlines()]


@pytest.mark.parametrize("client", WRITERS)
def test_the_transcript_of_every_sample_gives_its_rows_again(client: str, tmp_path: Path) -> None:
    rows = read_samples(client, tmp_path / "samples")
    for session_id, session in by_session(rows).items():
        config = tmp_path / session_id / ".codex/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("[model_providers.stub]\n")
        again, losses = restored(client, session, tmp_path / session_id)

        assert again.keys() <= rows.keys()
        own = {key for key, row in rows.items() if row["session_id"] == session_id}
        lost = [rows[key]["part_type"] for key in own - again.keys()]
        assert lost == ["reasoning"] * losses["thinking"]
        for key in own & again.keys():
            different = differences(rows[key], again[key])
            if losses["image"] and different.get("content_text") == (None, IMAGE_NOTE):
                del different["content_text"]
            assert different.keys() <= EXPECTED_DIFFERENCES[client], different


def test_a_thread_of_codex_gets_its_name_back_whenever_its_recording_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client remembers the path of a thread, and does not resume one whose file has another name."""
    rows = read_samples("codex", tmp_path / "samples")
    later = {key: {**row, "conversation_started_at": "2026-11-16T09:00:00.000Z"} for key, row in rows.items()}
    with monkeypatch.context() as clock:
        clock.setenv("TZ", "UTC")
        time.tzset()
        names = {
            file.path.relative_to(tmp_path).as_posix()
            for session in by_session(later).values()
            for file in WRITERS["codex"][0].restore(session, {"HOME": str(tmp_path)}).files
        }
    time.tzset()
    assert names == {f".codex/sessions/2026/11/15/{name}" for name in codex_rollouts.sample_names()}


@pytest.mark.parametrize("source", [*WRITERS, *OTHERS])
@pytest.mark.parametrize("target", WRITERS)
def test_what_was_said_in_every_sample_is_carried_over_in_order(source: str, target: str, tmp_path: Path) -> None:
    check_carried_over(by_session(read_samples(source, tmp_path / "samples")), target, tmp_path)


@pytest.mark.parametrize("sample", exchange_samples.list_samples(), ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("target", WRITERS)
def test_a_session_that_only_the_gateway_recorded_is_carried_over(sample: Path, target: str, tmp_path: Path) -> None:
    check_carried_over(by_session(gateway_rows(sample)), target, tmp_path)


@pytest.mark.parametrize("sample", exchange_samples.list_samples(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_session_that_only_the_gateway_recorded_is_given_back_to_its_client(sample: Path, tmp_path: Path) -> None:
    """Its messages have ids of their own: what was said is there, once and in order, and the client can resume it."""
    restored_any = False
    for session_id, session in by_session(gateway_rows(sample)).items():
        losses: Counter[str] = Counter()
        parts = list_carried_parts(session, losses)
        if not parts:
            continue
        again, _ = restored(session.client, session, tmp_path / session_id)
        assert {row["session_id"] for row in again.values()} == {session_id}
        # A fork has the messages of its origin first, which are older.
        ordered = sorted(again.values(), key=lambda row: (row["message_created_at"], row["message_index"]))
        texts = [row.get("content_text") for row in ordered]
        said = [part.text for part in parts if part.kind in ("user", "assistant") and part.text != IMAGE_NOTE]
        left = iter(texts)
        assert all(text in left for text in said), (said, texts)
        restored_any = True
    assert restored_any or "err400" in sample.name


def gateway_rows(sample: Path) -> Rows:
    """Return the rows of a real client's requests, as the gateway records them."""
    conversations = ConversationCache()
    found: Rows = {}
    for exchange in exchange_samples.read_sample(sample):
        for row in project_exchange(exchange, conversations).rows:
            stored = readable(complete_row(AI_GATEWAY_MESSAGES, dict(row), GATEWAY_ID))
            found.setdefault(stored["part_id"], stored)
    return found


def check_carried_over(sessions: Mapping[str, RecordedSession], target: str, tmp_path: Path) -> None:
    """Carry each session over, and compare what the other client then has with what was said."""
    writer, provider = WRITERS[target]
    for session_id, session in sessions.items():
        losses: Counter[str] = Counter()
        parts = list_carried_parts(session, losses)
        if not parts:
            continue
        folder = tmp_path / session_id
        paths = write_files(writer.carry_over(session, NEW_ID, {"HOME": str(folder)}))
        rows = sorted(read_rows(provider, paths).values(), key=lambda row: row["message_index"])

        assert {row["session_id"] for row in rows} == {NEW_ID}
        assert {row["entrypoint"] for row in rows} == {"hyp-restore-session"}
        kinds = {"text": ("user", "assistant"), "tool_call": ("call",), "tool_result": ("result",)}
        assert len(rows) == len(parts)
        for row, part in zip(rows, parts, strict=True):
            assert part.kind in kinds[row["part_type"]]
            assert (row.get("content_text") or "") == part.text
            assert (row.get("tool_call_id") or "") == part.call_id
        open_calls: set[str] = set()
        for part in parts:
            assert part.kind in ("call", "result") or not open_calls
            if part.kind == "call":
                open_calls.add(part.call_id)
            elif part.kind == "result":
                open_calls.remove(part.call_id)
        assert not open_calls


def test_a_compacted_session_is_resumed_from_its_summary(tmp_path: Path) -> None:
    name = next(each for each in claude_transcripts.sample_names() if "/compact/" in each)
    path = tmp_path / Path(name).name
    path.write_bytes(claude_transcripts.sample(name))
    original = [json.loads(line) for line in path.read_bytes().splitlines()]
    session = by_session(read_rows(claude_transcripts.PROVIDER, [path]))[path.stem]
    lines = lines_of(ClaudeTranscript().restore(session, {"HOME": str(tmp_path)}))

    (boundary,) = (line for line in lines if line.get("subtype") == "compact_boundary")
    (summary,) = (line for line in lines if line.get("isCompactSummary"))
    assert (boundary["parentUuid"], summary["parentUuid"]) == (None, boundary["uuid"])
    assert boundary["uuid"] in {line.get("uuid") for line in original if line.get("subtype") == "compact_boundary"}
    assert boundary["logicalParentUuid"] in {line.get("uuid") for line in lines}

    losses: Counter[str] = Counter()
    said = [(part.kind, part.text) for part in list_carried_parts(session, losses)]
    assert said == [
        ("user", summary["message"]["content"]),
        ("user", "Which colour did I say?"),
        ("assistant", "It was blue, according to the summary."),
    ]
    # The command /compact and what the client says about it are older than the summary that they follow.
    assert +losses == {"compacted": 2, "client_note": 3}


def test_every_line_of_a_restored_thread_is_reached_from_its_last_one(tmp_path: Path) -> None:
    """Attachments between the messages are not recorded; the client would lose what is before a missing parent."""
    name = next(each for each in claude_transcripts.sample_names() if "/tools/" in each)
    path = tmp_path / Path(name).name
    path.write_bytes(claude_transcripts.sample(name))
    session = by_session(read_rows(claude_transcripts.PROVIDER, [path]))[path.stem]
    lines = {line["uuid"]: line for line in lines_of(ClaudeTranscript().restore(session, {"HOME": str(tmp_path)}))}

    roots = [line for line in lines.values() if line["parentUuid"] is None]
    assert [line["message"]["content"] for line in roots] == [session.messages[0].get("content_text")]
    assert all(line["parentUuid"] in lines for line in lines.values() if line not in roots)


def test_thinking_without_a_signature_is_left_out_and_its_neighbours_are_linked(tmp_path: Path) -> None:
    session = claude_session(
        tmp_path,
        user("u1", "Think."),
        says("a1", {"type": "thinking", "thinking": "Hm."}, "u1", 1),
        says("a2", "Done.", "a1", 2),
    )
    transcript = ClaudeTranscript().restore(session, {"HOME": str(tmp_path)})

    assert [(line["uuid"], line["parentUuid"]) for line in lines_of(transcript)] == [("u1", None), ("a2", "u1")]
    assert transcript.losses == {"thinking": 1}


def test_an_item_that_lost_an_image_when_it_was_recorded_keeps_its_id(tmp_path: Path) -> None:
    """Its id follows from its content, which is another one now."""
    path = tmp_path / codex_rollouts.NAME
    image = f"data:image/png;base64,{'A' * 2000}"
    lines = (*codex_rollouts.BEGIN, codex_rollouts.calls("c1"), codex_rollouts.answers("c1", f"seen: {image}"))
    path.write_bytes(codex_rollouts.as_bytes(lines))
    rows = read_rows(codex_rollouts.PROVIDER, [path])
    again, _ = restored("codex", by_session(rows)[codex_rollouts.THREAD], tmp_path / "home")

    assert again.keys() == rows.keys()


def test_the_other_client_gets_the_thread_of_the_last_message_with_all_its_results(tmp_path: Path) -> None:
    session = claude_session(
        tmp_path,
        user("u1", "First."),
        says("a1", "A branch that was left.", "u1", 1, api="msg_0"),
        user("u2", "Second.", None, 2),
        says("a2", calls("call 1"), "u2", 3),
        says("a3", calls("call 2"), "a2", 4),
        # Results of parallel calls: only the last one is on the way to the last message.
        user("r1", answers("call 1"), "a2", 5),
        user("r2", answers("call 2"), "a3", 6),
        says("a4", calls("call 3"), "r2", 7, api="msg_2"),
        user("u3", "Never mind.", "a4", 8),
    )
    losses: Counter[str] = Counter()
    parts = list_carried_parts(session, losses)

    said = [(part.kind, part.text or part.call_id) for part in parts]
    results = [("result", "done"), ("result", "done")]
    assert said == [
        *(("user", "Second."), ("call", "call_1"), ("call", "call_2"), *results),
        *(("call", "call_3"), ("result", NOT_RECORDED), ("user", "Never mind.")),
    ]
    assert +losses == {"branch": 2}


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        ("/home/dev/project", "-home-dev-project"),
        ("/home/dev/My App_2.0", "-home-dev-My-App-2-0"),
        ("/home/ü/😀", "-home-----"),
        ("/home/dev/" + "ordner-ü😀/" * 25, "-home-dev-" + "ordner-----" * 17 + "ord-qoy2yw"),
    ],
)
def test_a_project_folder_has_the_name_that_the_client_gives_it(cwd: str, name: str) -> None:
    assert name_project_folder(cwd) == name


FIELDS = ("text", "thinking", "data", "signature", "id", "name", "input", "content", "tool_use_id", "is_error")
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "odd"])},
    optional={name: st.text() | json_values for name in FIELDS},
)
LINES = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["user", "assistant"]),
        "content": st.text() | st.lists(BLOCKS | json_values, max_size=4),
        "uuid": st.sampled_from("abcde"),
    },
    optional={
        "parentUuid": st.sampled_from("abcde"),
        "toolUseResult": json_values,
        "isCompactSummary": st.booleans(),
        "isApiErrorMessage": st.booleans(),
        "agentId": st.sampled_from(["x", "../x"]),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        LINES,
        min_size=1,
        max_size=6,
    )
)
def test_any_session_of_claude_code_can_be_restored_without_a_new_row(drawn: list[dict[str, Any]]) -> None:
    lines = [
        {
            **{name: value for name, value in each.items() if name != "content"},
            "sessionId": SESSION,
            "timestamp": claude_transcripts.at(second),
            "message": {"role": each["type"], "content": each["content"]},
        }
        for second, each in enumerate(drawn)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{SESSION}.jsonl"
        path.write_bytes(claude_transcripts.as_bytes(lines))
        rows = read_rows(claude_transcripts.PROVIDER, [path])
        for session in by_session(rows).values():
            assert restored("claude", session, Path(folder) / "home")[0].keys() <= rows.keys()
            CodexRollout().carry_over(session, NEW_ID, {"HOME": folder})
