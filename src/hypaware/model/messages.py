"""`ai_gateway_messages`: one row per content part of one message of an agent's session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypaware.model.columns import Column, Type
from hypaware.model.datasets import Dataset, Row
from hypaware.model.matching import SETTLING

SCHEMA_VERSION = 7

_S, _I, _B, _T, _J = Type.STRING, Type.INT, Type.BOOLEAN, Type.TIMESTAMP, Type.JSON

_COLUMNS = (
    # The container: where the message belongs.
    Column("gateway_id", _S, "Id of the installation that recorded the row.", required=True),
    Column("schema_version", _I, "Version of this dataset's columns; 7.", required=True),
    Column("session_id", _S, "The client's id of the session; a session that is resumed keeps it.", required=True),
    Column("conversation_id", _S, "Thread within the session (Codex); null for Claude."),
    Column("user_id", _S, "The user as the client names them."),
    Column("provider", _S, "Whose model answered, for example anthropic or openai.", required=True),
    Column("model", _S, "Model of the message, or of its conversation."),
    Column("system_text", _S, "System prompt of the conversation, where it is known."),
    Column("tools", _J, "Tools that the model was offered, where that is known."),
    Column("conversation_started_at", _T, "When the session began.", required=True),
    Column("conversation_source", _S, "Where the conversation was seen, for example claude or codex."),
    Column("client_name", _S, "The client that was recorded: claude, codex, or a plugin's."),
    # The environment: where the client ran.
    Column("cwd", _S, "Folder that the client worked in."),
    Column("git_branch", _S, "Branch checked out in cwd."),
    Column("git_remote", _S, "Remote of the repository in cwd, without credentials."),
    Column("head_sha", _S, "Commit checked out in cwd."),
    Column("repo_root", _S, "Top folder of the repository in cwd."),
    Column("client_version", _S, "Version of the client."),
    Column("entrypoint", _S, "How the client was started."),
    Column("user_type", _S, "Kind of user or thread, as the client says."),
    Column("permission_mode", _S, "What the client was allowed to do: its permission or sandbox mode."),
    Column("is_sidechain", _B, "True for messages of a subagent."),
    Column("agent_id", _S, "Id of the subagent; null in the main thread."),
    Column("parent_thread_id", _S, "Thread that started this one (Codex subagents)."),
    # The message.
    Column("message_id", _S, "The client's own id, else a hash of scope, role and content.", required=True),
    Column("previous_message_id", _J, "Array of 0 or 1 ids: the message before it in its thread."),
    Column("provider_uuid", _S, "Id of the transcript line that the message came from."),
    Column("parent_uuid", _S, "Id of the transcript line before it, which may have made no row."),
    Column("logical_parent_uuid", _S, "The same across a compaction of the history."),
    Column("source_tool_assistant_uuid", _S, "Id of the transcript line whose tool call this answers."),
    Column("request_id", _S, "The provider's id of the API request; the parts of one answer share it."),
    Column("prompt_id", _S, "The client's id of the prompt that led to the message."),
    Column("message_index", _I, "Position of the message in its conversation, from 0.", required=True),
    Column("message_created_at", _T, "When the message was made (UTC).", required=True),
    Column("role", _S, "user, assistant, tool or system.", required=True),
    # The part.
    Column("part_id", _S, "<message_id>#<part_index>; unique, the key of a row.", required=True),
    Column("part_index", _I, "Position of the part in its message, from 0.", required=True),
    Column("part_type", _S, "text, reasoning, tool_call, tool_result, image, file, error or another.", required=True),
    Column("provider_type", _S, "Type of the transcript line or item, as the client wrote it."),
    Column("provider_subtype", _S, "Subtype of that line, else the type of the content block."),
    Column("content_text", _S, "What was said, thought or returned; base64 data is left out."),
    Column("tool_name", _S, "Tool called, or whose call is answered."),
    Column("tool_call_id", _S, "Id of the tool call, on the call and on its result."),
    Column("tool_args", _J, "Arguments of the tool call."),
    Column("caller_type", _S, "Who made the call, where the client says."),
    Column("tool_result_for", _S, "Id of the call that this result answers."),
    Column("thinking_signature", _S, "The provider's signature of a reasoning part."),
    Column("attachment_type", _S, "Kind of attachment, where it is one."),
    Column("hook_event", _S, "The client's hook that produced it, where one did."),
    Column("is_error", _B, "True where the part is an error, else null."),
    Column("is_compact_summary", _B, "True for the summary that replaces compacted history."),
    Column("compact_metadata", _J, "What the client noted about a compaction."),
    Column("status", _J, "How it ended: tool_status, finish_reason, error_code, error_message."),
    Column("attributes", _J, "Everything else, in groups; usage (tokens) stands on one row of each answer."),
    Column("raw_frame", _J, "Ids and type of the line it came from; never its text."),
    Column("date", _S, "UTC day of message_created_at, YYYY-MM-DD.", required=True),
)


def _derive(row: Row, gateway_id: str) -> Mapping[str, Any]:
    derived: dict[str, Any] = {"gateway_id": gateway_id, "schema_version": SCHEMA_VERSION}
    if created_at := row.get("message_created_at"):
        derived["date"] = created_at[:10]
    if (message_id := row.get("message_id")) is not None and (part_index := row.get("part_index")) is not None:
        derived["part_id"] = f"{message_id}#{part_index}"
    return derived


AI_GATEWAY_MESSAGES = Dataset(
    name="ai_gateway_messages",
    about="One row per content part of one message of an agent's session.",
    columns=_COLUMNS,
    time_column="message_created_at",
    source_columns=("client_name", "conversation_source", "provider"),
    key_column="part_id",
    key_parts=("message_id", "part_index"),
    derive=_derive,
    settling=SETTLING,
)
