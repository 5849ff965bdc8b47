"""What Codex states in a request of the Responses dialect beyond the conversation.

Thread and session are in the body's `client_metadata`, else in the header x-codex-turn-metadata, else in headers of
their own. Newer versions send every item's id in every request.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from hypaware.clients.client_requests import CallKind, ClientRequest, RequestFacts, SessionIds
from hypaware.model.json_values import as_list, as_mapping, as_text, join_texts, parse_json
from hypaware.text import strip_url_credentials

_METADATA = "x-codex-turn-metadata"
_ENVIRONMENT = "<environment_context>"
_CWD = re.compile(r"<cwd>([^<]+)</cwd>")
_KINDS = {"compaction": CallKind.COMPACTION, "prewarm": CallKind.WARMUP}


class CodexRequests:
    dialects = ("openai_responses",)

    def find_session(self, request: ClientRequest) -> SessionIds:
        metadata, headers = _turn_metadata(request), request.headers
        return SessionIds(
            as_text(metadata.get("session_id"))
            or as_text(headers.get("session-id"))
            or as_text(headers.get("session_id")),
            as_text(metadata.get("thread_id"))
            or as_text(headers.get("thread-id"))
            or as_text(headers.get("conversation_id")),
        )

    def read(self, request: ClientRequest, ids: SessionIds) -> RequestFacts:
        metadata = _turn_metadata(request)
        workspaces = as_mapping(metadata.get("workspaces"))
        # The folder and its properties, if the turn works in only one.
        folder, properties = next(iter(workspaces.items())) if len(workspaces) == 1 else (None, None)
        workspace = as_mapping(properties)
        source, sandbox = as_text(metadata.get("thread_source")), as_text(metadata.get("sandbox_mode"))
        originator, remote = as_text(request.headers.get("originator")), _find_remote(workspace)
        commit, has_changes = as_text(workspace.get("latest_git_commit_hash")), workspace.get("has_changes")
        columns = {
            "conversation_source": "codex",
            "cwd": _stated_cwd(request.body.get("input")) or folder,
            "git_remote": remote,
            "head_sha": commit,
            "entrypoint": originator,
            "user_type": source,
            "permission_mode": sandbox,
            "is_sidechain": None if source is None else source == "subagent",
            "parent_thread_id": as_text(request.headers.get("x-codex-parent-thread-id"))
            or as_text(metadata.get("parent_thread_id")),
        }
        attributes = {
            **_name_ids(ids),
            "workspace": folder,
            "git_origin_url": remote,
            "git_commit": commit,
            "sandbox": sandbox,
            "originator": originator,
            "thread_source": source,
            "has_changes": has_changes if isinstance(has_changes, bool) else None,
        }
        return RequestFacts(
            kind=_KINDS.get(str(metadata.get("request_kind")), CallKind.TURN),
            columns=columns,
            attributes={"codex": {name: value for name, value in attributes.items() if value is not None}},
            has_item_ids=True,
            main_thread_is_session=True,
            transcript_has_context=True,
        )


REQUESTS = CodexRequests()


def _turn_metadata(request: ClientRequest) -> Mapping[str, Any]:
    """Return the client's metadata of the turn; the body takes precedence over the header."""
    stated = as_mapping(request.body.get("client_metadata"))
    inner = as_mapping(parse_json(stated.get(_METADATA)) or parse_json(request.headers.get(_METADATA)))
    return inner | {name: value for name, value in stated.items() if value is not None}


def _name_ids(ids: SessionIds) -> Mapping[str, str | None]:
    session = ids.session_id or ids.thread_id
    return {"session_id": session, "thread_id": ids.thread_id if ids.thread_id != session else None}


def _find_remote(workspace: Mapping[str, Any]) -> str | None:
    urls = as_mapping(workspace.get("associated_remote_urls"))
    url = as_text(urls.get("origin")) or next(filter(None, map(as_text, urls.values())), None)
    return None if url is None else strip_url_credentials(url)


def _stated_cwd(input_items: Any) -> str | None:
    """Return the working directory that the client stated last; outside of a repository nothing else names it."""
    for item in map(as_mapping, reversed(as_list(input_items))):
        content = join_texts(item.get("content")) if item.get("role") == "user" else None
        if content and content.startswith(_ENVIRONMENT) and (match := _CWD.search(content)):
            return html.unescape(match[1])
    return None
