"""Read the fields of one transcript line. Values are not checked here; the code that stores them does that."""

from __future__ import annotations

from typing import Any

Value = dict[str, Any]

SYNTHETIC = "<synthetic>"
"""The model name of messages that the client writes in place of the model."""

_COLUMNS = {
    "uuid": "provider_uuid",
    "parentUuid": "parent_uuid",
    "logicalParentUuid": "logical_parent_uuid",
    "sourceToolAssistantUUID": "source_tool_assistant_uuid",
    "requestId": "request_id",
    "promptId": "prompt_id",
    "agentId": "agent_id",
    "type": "provider_type",
    "subtype": "provider_subtype",
    "entrypoint": "entrypoint",
    "userType": "user_type",
    "permissionMode": "permission_mode",
    "is_sidechain": "is_sidechain",
    "isSidechain": "is_sidechain",
    "is_compact_summary": "is_compact_summary",
    "isCompactSummary": "is_compact_summary",
    "compact_metadata": "compact_metadata",
    "compactMetadata": "compact_metadata",
    "hookEvent": "hook_event",
}
_FRAME = {
    "uuid": "uuid",
    "parentUuid": "parent_uuid",
    "logicalParentUuid": "logical_parent_uuid",
    "type": "type",
    "subtype": "subtype",
    "timestamp": "timestamp",
}


def text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def message_of(value: Value) -> Value:
    message = value.get("message")
    return message if isinstance(message, dict) else {}


def role_of(value: Value, message: Value) -> str | None:
    """Return the role, or None if the line is not a message."""
    role = message.get("role")
    if isinstance(role, str) and role:
        return role
    line_type = value.get("type")
    return line_type if line_type in ("user", "assistant") else None


def is_api_error(value: Value) -> bool:
    """Return whether the line reports a failed request in place of the model's response."""
    return value.get("isApiErrorMessage") is True


def content_of(value: Value, message: Value) -> Any:
    content = message.get("content")
    if not content or not is_api_error(value):
        return content
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return [_as_error(block) for block in blocks]


def error_of(value: Value, content: Any) -> tuple[Any, Any]:
    """Return (code, message) of an API error."""
    codes = (value.get("apiErrorType"), value.get("error"), value.get("apiErrorStatus"))
    code = next((code for code in codes if code not in (None, "", "unknown")), None)
    errors = (block for block in content or () if isinstance(block, dict) and block.get("type") == "error")
    message = next(errors, {}).get("message")
    return code if code is None or isinstance(code, str) else str(code)[:100], message


def columns_of(value: Value, message: Value) -> Value:
    """Return the columns of the line's rows, except those of its blocks and its session."""
    columns = {_COLUMNS[key]: field for key, field in value.items() if key in _COLUMNS and field is not None}
    frame = {_FRAME[key]: field for key, field in value.items() if key in _FRAME and isinstance(field, str)}
    if isinstance(api_id := message.get("id"), str):
        frame["message_id"] = api_id
    columns["raw_frame"] = frame
    if (model := message.get("model")) != SYNTHETIC:
        columns["model"] = model
    if isinstance(attachment := value.get("attachment"), dict):
        columns["attachment_type"] = attachment.get("type")
        if (event := attachment.get("hookEvent")) is not None:
            columns["hook_event"] = event
    return columns


def _as_error(block: Any) -> Any:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return {"type": "error", "message": block["text"]}
    return block
