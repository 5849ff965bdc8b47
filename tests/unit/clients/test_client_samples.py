"""Sessions that the clients wrote themselves, compared with a naive reading of the same files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.clients.client import Provider, SessionProvider, WatchableProvider
from hypaware.clients.copilot.history import CopilotHistory
from hypaware.clients.gemini.history import GeminiHistory
from hypaware.clients.qwen.history import QwenHistory
from tests.support import session_oracle
from tests.support.client_samples import FIXTURES, copy_sample
from tests.support.history import GrowingFile, rows_of, usage
from tests.support.session_oracle import Totals

Oracle = Callable[[bytes], Totals]
CLIENTS: list[tuple[Provider, str, Oracle]] = [
    (CopilotHistory(), "copilot", session_oracle.copilot),
    (QwenHistory(), "qwen", session_oracle.qwen),
    (GeminiHistory(), "gemini", session_oracle.gemini),
]
SAMPLES = [
    pytest.param(provider, path, oracle, id=f"{name}-{path.stem[:36]}")
    for provider, name, oracle in CLIENTS
    for path in sorted((FIXTURES / name).rglob("*.jsonl"))
]
AGENTS = {"copilot": "call_3", "gemini": "5b685ad6-396f-4e4d-91ca-5abd2901653f", "qwen": "general-purpose-call_17"}
"""The subagents in the samples: the call that started one, the name of its file, or the client's id."""


@pytest.mark.parametrize(("provider", "sample", "oracle"), SAMPLES)
def test_every_part_and_token_of_a_session_is_recorded(
    tmp_path: Path, provider: Provider, sample: Path, oracle: Oracle
) -> None:
    rows, reading = rows_of(provider, copy_sample(tmp_path, sample))
    parts, tokens = oracle(sample.read_bytes())

    assert Counter((row["role"], row["part_type"]) for row in rows) == parts
    assert usage(rows) == +tokens
    assert len({row["part_id"] for row in rows}) == len(rows)
    assert not [reason for reason in reading.skipped if reason.startswith("unknown")]
    assert {row["client_name"] for row in rows} == {provider.name}
    assert reading.consumed == sample.stat().st_size


@pytest.mark.parametrize(("provider", "sample", "oracle"), SAMPLES)
@pytest.mark.parametrize("quiet", [True, False])
def test_a_session_that_is_read_while_it_grows_gives_the_same_parts(
    tmp_path: Path, provider: Provider, sample: Path, oracle: Oracle, quiet: bool
) -> None:
    path = copy_sample(tmp_path, sample)
    whole, _ = rows_of(provider, path)
    path.unlink()
    file = GrowingFile(provider, path)
    lines = sample.read_bytes().splitlines(keepends=True)
    for end in range(1, len(lines) + 1):
        file.grow_to(b"".join(lines[:end]), quiet=quiet)
    file.grow_to(b"".join(lines), quiet=True)

    # The key index drops what is read twice.
    assert {row["part_id"] for row in file.rows} == {row["part_id"] for row in whole}
    kept = {row["part_id"]: row for row in reversed(file.rows)}
    assert usage(kept.values()) == usage(whole)


@pytest.mark.parametrize(("provider", "sample", "oracle"), SAMPLES)
def test_the_session_and_its_first_time_are_seen_in_the_first_bytes(
    tmp_path: Path, provider: Provider, sample: Path, oracle: Oracle
) -> None:
    path = copy_sample(tmp_path, sample)
    rows, _ = rows_of(provider, path)
    assert isinstance(provider, SessionProvider)
    assert isinstance(provider, WatchableProvider)

    assert provider.session_of(path, path.read_bytes()) == rows[0]["session_id"]
    first = provider.first_time(path.read_bytes())
    assert first is not None
    assert first <= min(row["message_created_at"] for row in rows)
    assert first[:13] == rows[0]["message_created_at"][:13]


@pytest.mark.parametrize(("provider", "sample", "oracle"), SAMPLES)
def test_results_name_their_tool_and_models_and_versions_are_recorded(
    tmp_path: Path, provider: Provider, sample: Path, oracle: Oracle
) -> None:
    rows, _ = rows_of(provider, copy_sample(tmp_path, sample))

    calls = {row["tool_call_id"]: row["tool_name"] for row in rows if row["part_type"] == "tool_call"}
    results = {row["tool_result_for"]: row["tool_name"] for row in rows if row["part_type"] == "tool_result"}
    assert results == calls
    assert all(row.get("model") for row in rows if row["role"] == "assistant" and row["part_type"] != "error")


@pytest.mark.parametrize(("provider", "name"), [pytest.param(provider, name, id=name) for provider, name, _ in CLIENTS])
def test_what_a_subagent_did_is_in_its_session_and_told_from_what_the_user_said(
    tmp_path: Path, provider: Provider, name: str
) -> None:
    rows = [
        row
        for sample in (FIXTURES / name).rglob("*.jsonl")
        for row in rows_of(provider, copy_sample(tmp_path, sample))[0]
    ]
    (session,) = {row["session_id"] for row in rows if row.get("content_text") == "Let a subagent do it."}
    said = [row for row in rows if row["session_id"] == session]
    its = [row for row in said if row.get("is_sidechain")]

    assert {row["agent_id"] for row in its} == {AGENTS[name]}
    assert "Do it" in next(row["content_text"] for row in its if row["role"] == "user")
    assert next(row["tool_name"] for row in its if row["part_type"] == "tool_call") in ("bash", "run_shell_command")
    prompts = [row["content_text"] for row in said if row["role"] == "user" and not row.get("is_sidechain")]
    assert [text for text in prompts if not text.startswith("<task-notification>")][-1:] == ["Let a subagent do it."]
    assert not [row for row in said if row not in its and row.get("agent_id")]
    agents = {row["message_id"]: row.get("agent_id") for row in said}
    links = {row["message_id"]: row["previous_message_id"] for row in said if not row.get("agent_id")}
    assert {agents[before] for each in links.values() for before in each} == {None}
    assert list(links.values()).count([]) == 1, "the thread is whole"
