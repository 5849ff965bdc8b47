"""The columns of the built-in datasets `ai_gateway_messages` and `ai_gateway_exchanges`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypaware.model.columns import Column, ColumnType
from hypaware.model.datasets import Dataset, Row
from hypaware.model.match_keys import MESSAGE_MATCH_RULES

SCHEMA_VERSION = 7
GATEWAY_TYPE = "gateway"
"""The `provider_type` of rows that are not part of the conversation: no transcript has them, and counts leave them out.
`provider_subtype` says what they are: context, history, unfinished, failed_call, compaction, no_output."""
_S, _I, _L, _B = ColumnType.STRING, ColumnType.INT, ColumnType.BIGINT, ColumnType.BOOLEAN
_T, _J = ColumnType.TIMESTAMP, ColumnType.JSON
_MESSAGE_COLUMNS = (
    # The session that the message belongs to.
    Column("gateway_id", _S, "Id of the installation that recorded the row.", required=True),
    Column("schema_version", _I, "Version of this dataset's columns: 7.", required=True),
    Column("session_id", _S, "The client's session id; a resumed session keeps it.", required=True),
    Column("conversation_id", _S, "Thread within the session (Codex); null for Claude Code."),
    Column("user_id", _S, "The user, as the client names them."),
    Column("provider", _S, "Provider of the model, for example anthropic or openai.", required=True),
    Column("model", _S, "Model of the message or of its conversation."),
    Column("system_text", _S, "System prompt of the conversation, if known."),
    Column("tools", _J, "Tools offered to the model, if known."),
    Column("conversation_started_at", _T, "When the session began.", required=True),
    Column("conversation_source", _S, "Origin of the conversation, for example claude or codex."),
    Column("client_name", _S, "The recorded client: claude, codex, or a plugin's."),
    # The environment that the client ran in.
    Column("cwd", _S, "Working directory of the client."),
    Column("git_branch", _S, "Branch checked out in cwd."),
    Column("git_remote", _S, "Remote of the repository in cwd, without credentials."),
    Column("head_sha", _S, "Commit checked out in cwd."),
    Column("repo_root", _S, "Root directory of the repository in cwd."),
    Column("client_version", _S, "Version of the client."),
    Column("entrypoint", _S, "How the client was started."),
    Column("user_type", _S, "Kind of user or thread, as the client reports it."),
    Column("permission_mode", _S, "Permission or sandbox mode of the client."),
    Column("is_sidechain", _B, "True for messages of a subagent."),
    Column("agent_id", _S, "Id of the subagent; null in the main thread."),
    Column("parent_thread_id", _S, "Thread that started this one (Codex subagents)."),
    # The message.
    Column(
        "message_id", _S, "The client's own id, or a hash of scope, role and content.", required=True, distinct=True
    ),
    Column("previous_message_id", _J, "Array of 0 or 1 ids: the previous message in the thread.", distinct=True),
    Column("provider_uuid", _S, "Id of the message's transcript line.", distinct=True),
    Column("parent_uuid", _S, "Id of the previous transcript line, which may have no row.", distinct=True),
    Column("logical_parent_uuid", _S, "Like parent_uuid, across a compaction of the history."),
    Column(
        "source_tool_assistant_uuid",
        _S,
        "Id of the transcript line with the tool call that this is the result of.",
        distinct=True,
    ),
    Column("request_id", _S, "The provider's id of the API request; shared by the parts of one response."),
    Column("prompt_id", _S, "The client's id of the prompt that led to the message."),
    Column("message_index", _I, "Position of the message in its conversation, starting at 0.", required=True),
    Column("message_created_at", _T, "When the message was created (UTC).", required=True, distinct=True),
    Column("role", _S, "user, assistant, tool or system.", required=True),
    # The part.
    Column("part_id", _S, "<message_id>#<part_index>; unique, the row's key.", required=True, distinct=True),
    Column("part_index", _I, "Position of the part in its message, starting at 0.", required=True),
    Column(
        "part_type",
        _S,
        "text, reasoning, tool_call, tool_result, image, file, error, usage, or another type.",
        required=True,
    ),
    Column(
        "provider_type", _S, "Type of the transcript line or item; gateway if the row is not part of the conversation."
    ),
    Column("provider_subtype", _S, "Subtype of that line, or the type of the content block."),
    Column("content_text", _S, "Text, reasoning or tool result; base64 data is removed.", distinct=True),
    Column("tool_name", _S, "Name of the called tool, on the call and on its result."),
    Column("tool_call_id", _S, "Id of the tool call, on the call and on its result.", distinct=True),
    Column("tool_args", _J, "Arguments of the tool call.", distinct=True),
    Column("caller_type", _S, "Who made the call, if the client reports it."),
    Column("tool_result_for", _S, "Id of the call that this is the result of.", distinct=True),
    Column("thinking_signature", _S, "The provider's signature of a reasoning part.", distinct=True),
    Column("attachment_type", _S, "Kind of attachment, if the part is one."),
    Column("hook_event", _S, "The client hook that produced the message, if any."),
    Column("is_error", _B, "True if the part is an error, otherwise null."),
    Column("is_compact_summary", _B, "True for the summary that replaces compacted history."),
    Column("compact_metadata", _J, "The client's notes about a compaction."),
    Column("status", _J, "Outcome: tool_status, finish_reason, error_code, error_message."),
    Column("attributes", _J, "Everything else, in groups; token usage is on one row of each response."),
    Column("raw_frame", _J, "Ids and type of the transcript line; never its text.", distinct=True),
    Column("date", _S, "UTC day of message_created_at, YYYY-MM-DD.", required=True),
)


def _derive_message_columns(row: Row, gateway_id: str) -> Mapping[str, Any]:
    derived: dict[str, Any] = {"gateway_id": gateway_id, "schema_version": SCHEMA_VERSION}
    if created_at := row.get("message_created_at"):
        derived["date"] = created_at[:10]
    if (message_id := row.get("message_id")) is not None and (part_index := row.get("part_index")) is not None:
        derived["part_id"] = f"{message_id}#{part_index}"
    return derived


AI_GATEWAY_MESSAGES = Dataset(
    name="ai_gateway_messages",
    about="One row per content part of a message in an agent's session.",
    columns=_MESSAGE_COLUMNS,
    time_column="message_created_at",
    source_columns=("client_name", "conversation_source", "provider"),
    key_column="part_id",
    key_parts=("message_id", "part_index"),
    derive=_derive_message_columns,
    match_rules=MESSAGE_MATCH_RULES,
)


_EXCHANGE_COLUMNS = (
    Column("exchange_id", _S, "Id of the exchange; unique, the row's key.", required=True),
    Column("gateway_id", _S, "Id of the installation that recorded the row.", required=True),
    Column("ts_start", _T, "When the request began (UTC).", required=True),
    Column("ts_end", _T, "When the response ended (UTC)."),
    Column("duration_ms", _L, "Milliseconds from start to end."),
    Column("ttfb_ms", _L, "Milliseconds from start to the first byte of the response body."),
    Column("upstream", _S, "Name of the upstream that the request was sent to."),
    Column("provider", _S, "API dialect of the upstream, for example anthropic or openai."),
    Column("client_name", _S, "The recorded client, if known."),
    Column("session_id", _S, "The client's session id, if the exchange could be decoded."),
    Column("method", _S, "HTTP method.", required=True),
    Column("path", _S, "Path with query string; the values of the query are removed.", required=True),
    Column("status_code", _I, "Status of the response; null if there was none."),
    Column("request_bytes", _L, "Size of the request body as transferred."),
    Column("response_bytes", _L, "Size of the response body as transferred."),
    Column("is_sse", _B, "True if the response was an event stream."),
    Column("stream_event_count", _I, "Events in the stream."),
    Column("request_headers", _J, "Headers of the request, without secrets."),
    Column("response_headers", _J, "Headers of the response, without secrets."),
    Column("request_body", _S, "The new parts of the request body; body_refs says how to reassemble the whole."),
    Column("response_body", _S, "The response body, decompressed."),
    Column("body_refs", _J, "The parts of the request body, by content hash; null if request_body is complete."),
    Column("error", _S, "Why the exchange ended early, or why a body could not be decompressed."),
    Column("decoded", _B, "True if HypAware could decode the exchange."),
    Column("metadata", _J, "Kind of call (turn, title, count_tokens, compaction, warmup, side), dialect, dev_run_id."),
)


AI_GATEWAY_EXCHANGES = Dataset(
    name="ai_gateway_exchanges",
    about="One row per HTTP exchange that passed the gateway, without secrets.",
    columns=_EXCHANGE_COLUMNS,
    time_column="ts_start",
    source_columns=("client_name", "provider", "upstream"),
    key_column="exchange_id",
    derive=lambda _row, gateway_id: {"gateway_id": gateway_id},
    retention_days=14,
)
