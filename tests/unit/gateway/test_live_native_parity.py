"""The same conversation, live and from its transcript: every part has a match with the same content.

`DIFFERENCES` lists the columns that cannot be equal, and why; all others must be.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.gateway.projection.conversation import ConversationCache
from hypaware.gateway.projection.projector import project_exchange
from hypaware.model.datasets import Row, coerce_row
from hypaware.model.match_keys import MESSAGE_MATCH_RULES, list_match_keys
from hypaware.model.schemas import AI_GATEWAY_MESSAGES, GATEWAY_TYPE
from tests.support import claude_transcripts, codex_rollouts, exchange_samples
from tests.support.history import GATEWAY_ID, readable, rows_of, usage

SCENARIOS = [
    *("claude-1.0.128/basic", "claude-2.0.76/basic"),
    *(f"claude-2.1.325/{name}" for name in ("autocompact", "compact", "err400", "gzip", "interactive", "overload")),
    *(f"claude-2.1.325/{name}" for name in ("plain", "resume", "subagent", "tools")),
    *(f"codex-0.166.0/{name}" for name in ("err400", "plain", "resume", "subagent", "tools")),
    "codex-0.77.0/basic",
]

_IDENTITY = "transcripts' ids never travel; settlement gives the live row its twin's"
_TIMES = "a transcript notes when a line was written, the gateway when the exchange began or ended"
_MARK = "context and failed calls are marked until their native row settles them"
_FOLDER = "not on the wire; the session's facts, where the hooks noted them, are given to `project`"
DIFFERENCES: dict[str, dict[str, str]] = {
    "claude": {
        **dict.fromkeys(("message_id", "part_id", "provider_uuid", "parent_uuid"), _IDENTITY),
        "source_tool_assistant_uuid": _IDENTITY,
        "prompt_id": _IDENTITY,
        "raw_frame": "of the live row: the line's type and the API message's id",
        **dict.fromkeys(("message_created_at", "conversation_started_at"), _TIMES),
        **dict.fromkeys(("cwd", "git_branch"), _FOLDER),
        **dict.fromkeys(("provider_type", "provider_subtype"), _MARK),
        "permission_mode": "not on the wire",
        "message_index": "a compacted history is counted from its summary; old clients' subagents from their own start",
        "attributes": "gateway and claude.* say where a row is from; what else is in it is compared apart",
        "agent_id": "clients before 2.1 do not name their agents on the wire",
        "is_sidechain": "clients before 2.1 do not name their agents on the wire",
        "entrypoint": "old transcripts do not have it",
        "system_text": "old transcripts do not have it",
        "tools": "old transcripts do not have them",
        "status": "old transcripts have no stop_reason; the client words an API error in its own way",
        "content_text": "clients put reminders behind a tool's result, and word an API error in their own way",
        "tool_args": "the fixture's paths were made equal in whole texts, not in the fragments of a stream",
    },
    "codex": {
        **dict.fromkeys(("message_id", "part_id"), "clients before 0.100 show no ids, and count otherwise"),
        **dict.fromkeys(("message_created_at", "conversation_started_at"), _TIMES),
        **dict.fromkeys(("head_sha", "permission_mode"), "old clients do not show them"),
        **dict.fromkeys(("provider_type", "provider_subtype"), _MARK),
        "git_branch": "not on the wire",
        "request_id": "rollouts do not have it",
        "tools": "rollouts do not have them",
        "system_text": "rollouts do not have it",
        "message_index": "the wire shows items that the rollout of a fork or of an old client does not hold",
        "attributes": "gateway and codex.* say where a row is from; what else is in it is compared apart",
        "content_text": "the client leaves empty blocks of a tool's output out",
    },
}
_WARMUPS = {"claude-2.0.76/basic": 6}
"""Parts that only the import has: the client writes transcripts of its warm-up calls, which are not conversations."""


_BETWEEN = {"claude-2.1.325/autocompact": "compaction"}
"""If the client compacts while a tool runs, the transcript has the result before the summary, a request after it. With
several calls in one message, a transcript has results between them, but a request lists all calls first."""


class Joined:
    """The parts of a scenario: matched pairs, and the parts without a match."""

    def __init__(self, imported: list[Row], live: list[Row]) -> None:
        self.pairs: list[tuple[Row, Row]] = []
        self.imported_only: list[Row] = []
        self.imported_id_of: dict[str, str] = {}
        waiting: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in sorted(live, key=_time):
            for key in list_match_keys(row):
                waiting[row["session_id"], key].append(row)
        taken: set[str] = set()
        for row in sorted(imported, key=_time):
            rivals = (each for key in list_match_keys(row) for each in waiting[row["session_id"], key])
            twin = next((each for each in rivals if each["part_id"] not in taken), None)
            if twin is None:
                self.imported_only.append(row)
            else:
                taken.add(twin["part_id"])
                self.pairs.append((row, twin))
                self.imported_id_of[twin["message_id"]] = row["message_id"]
        self.live_only = [row for row in live if row["part_id"] not in taken]


def _time(row: Row) -> str:
    return str(row["message_created_at"])


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    return transcript_rows(tmp_path_factory.mktemp("transcripts"))


def transcript_rows(folder: Path) -> dict[str, list[Row]]:
    """Map each session to the rows of its transcripts, each part once."""
    found: dict[str, Row] = {}
    for path in claude_transcripts.unpacked(folder / "claude"):
        for row in rows_of(claude_transcripts.PROVIDER, path, quiet=True)[0]:
            found.setdefault(row["part_id"], row)
    for name in codex_rollouts.sample_names():
        path = folder / name
        path.write_bytes(codex_rollouts.sample(name))
        for row in rows_of(codex_rollouts.PROVIDER, path, quiet=True)[0]:
            found.setdefault(row["part_id"], row)
    shutil.rmtree(folder)
    by_session: dict[str, list[Row]] = defaultdict(list)
    for row in found.values():
        by_session[row["session_id"]].append(row)
    return by_session


@pytest.fixture(scope="module")
def joined(imported: dict[str, list[Row]]) -> dict[str, Joined]:
    made = {}
    for scenario in SCENARIOS:
        live = list(live_rows(scenario))
        sessions = sorted({row["session_id"] for row in live})
        made[scenario] = Joined([row for session in sessions for row in imported[session]], live)
    return made


def live_rows(scenario: str) -> Iterator[Row]:
    seen, parts = ConversationCache(), set[str]()
    for exchange in exchange_samples.read_sample(exchange_samples.SAMPLES / f"{scenario}.ndjson.xz"):
        for row in project_exchange(exchange, seen).rows:
            if row["part_id"] not in parts:
                parts.add(row["part_id"])
                yield readable(coerce_row(AI_GATEWAY_MESSAGES, row, GATEWAY_ID))


@pytest.mark.hazard(68)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_transcript_part_matches_its_live_row(joined: dict[str, Joined], scenario: str) -> None:
    alone = [(row["role"], row.get("content_text")) for row in joined[scenario].imported_only]

    assert len(alone) == _WARMUPS.get(scenario, 0), alone
    assert joined[scenario].pairs


@pytest.mark.hazard(105)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_live_rows_that_count_after_settlement_are_those_of_the_import(
    joined: dict[str, Joined], scenario: str
) -> None:
    """Rows that no transcript has are marked, and a settled row has no mark."""
    found = joined[scenario]
    settled = [MESSAGE_MATCH_RULES.settle(live, native) for native, live in found.pairs]
    counted = [row for row in [*settled, *found.live_only] if row.get("provider_type") != GATEWAY_TYPE]

    assert sorted(row["part_id"] for row in counted) == sorted(row["part_id"] for row, _ in found.pairs)
    assert {row["provider_subtype"] for row in found.live_only} <= {"context", "failed_call", "compaction"}


def test_live_rows_include_those_that_no_transcript_has(joined: dict[str, Joined]) -> None:
    found = Counter(
        (row["role"], row["provider_subtype"])
        for scenario, each in joined.items()
        for row in each.live_only
        if scenario.startswith("claude-2.1")
    )

    assert found == {
        ("user", "context"): 24,
        ("system", "context"): 17,
        ("assistant", "failed_call"): 8,
        ("assistant", "compaction"): 2,
    }


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_matching_rows_have_the_same_content(joined: dict[str, Joined], scenario: str) -> None:
    may_differ = DIFFERENCES[scenario.partition("-")[0]].keys() | {"previous_message_id"}
    for ours, live in joined[scenario].pairs:
        different = {
            column.name: (ours.get(column.name), live.get(column.name))
            for column in AI_GATEWAY_MESSAGES.columns
            if ours.get(column.name) != live.get(column.name) and column.name not in may_differ
        }
        assert different == {}
        assert live["attributes"]["client"] == ours["attributes"]["client"]


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each.startswith("claude-2.1")])
def test_live_messages_form_the_same_thread_as_the_transcript(joined: dict[str, Joined], scenario: str) -> None:
    names = joined[scenario].imported_id_of
    for ours, live in joined[scenario].pairs:
        before = [names.get(each, each) for each in live["previous_message_id"]]
        said = str(ours.get("content_text"))
        if before != ours["previous_message_id"]:
            happened_between = _BETWEEN.get(scenario, "nothing") in said
            assert happened_between or ours["part_type"] in ("tool_call", "tool_result"), said


@pytest.mark.hazard(67)
@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if "-2.1" in each or each.startswith("codex")])
def test_live_and_native_rows_have_the_same_tokens(joined: dict[str, Joined], scenario: str) -> None:
    """This includes calls that the client had to repeat, but not those that no transcript counts."""
    found = joined[scenario]
    ours = usage([row for row, _ in found.pairs] + found.imported_only)
    live_only = [row for row in found.live_only if row["part_type"] != "usage"]

    assert usage([row for _, row in found.pairs] + live_only) == ours


def test_each_documented_difference_occurs(joined: dict[str, Joined]) -> None:
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for scenario, found in joined.items():
        for ours, live in found.pairs:
            seen[scenario.partition("-")[0]].update(
                column.name for column in AI_GATEWAY_MESSAGES.columns if ours.get(column.name) != live.get(column.name)
            )

    for client, listed in DIFFERENCES.items():
        assert seen[client].keys() - {"previous_message_id"} == listed.keys()
