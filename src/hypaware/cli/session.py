"""`hyp session`: exclude sessions from recording, and show which are excluded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import Group, json_option
from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.text import summarize_error

if TYPE_CHECKING:
    from hypaware.home.session_context import SessionFolder
    from hypaware.privacy.policy import PrivacyPolicy

_EXAMPLE_ID = "0dc91b82-3238-4907-98f3-ae0d1d845b97"
_MAX_SHOWN_SESSIONS = 5
_MAX_SHOWN_FOLDERS = 20
_ENDS_WITH_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

unknown_option = click.option("--unknown", is_flag=True, help="Accept the ID of a session that was never seen here.")


@click.group(
    "session", cls=Group, examples=["hyp session status", "hyp session ignore", f"hyp session ignore {_EXAMPLE_ID}"]
)
def session() -> None:
    """Exclude sessions from recording, and show which are excluded and why.

    Without ID, a command applies to the session in the current folder, as reported by an attached client. To exclude a
    whole folder, put a file named .hypignore into it or list it in privacy.folders in the config.
    """


@session.command("ignore", examples=["hyp session ignore", f"hyp session ignore {_EXAMPLE_ID}"])
@click.argument("session_id", metavar="[ID]", required=False)
@unknown_option
@json_option
def ignore(session_id: str | None, unknown: bool) -> None:
    """Stop recording session ID, or the only session whose id starts with it.

    It is no longer recorded, imported or exported. Rows that are already in the lake stay there until you purge them.
    """
    from hypaware.privacy.ignored_sessions import ignore_session

    _change(session_id, unknown, ignore_session, ignored=True)


@session.command("unignore", examples=["hyp session unignore", f"hyp session unignore {_EXAMPLE_ID}"])
@click.argument("session_id", metavar="[ID]", required=False)
@unknown_option
@json_option
def unignore(session_id: str | None, unknown: bool) -> None:
    """Record session ID again, subject to the rules of its folder."""
    from hypaware.privacy.ignored_sessions import unignore_session

    _change(session_id, unknown, unignore_session, ignored=False)


@session.command("status", examples=["hyp session status", f"hyp session status {_EXAMPLE_ID} --json"])
@click.argument("session_id", metavar="[ID]", required=False)
@json_option
def status(session_id: str | None) -> None:
    """Show which sessions are excluded, and why.

    Without ID, list the excluded sessions, the sessions in the current folder, and deleted folders that stay private.
    With ID, or the first characters of one, show the privacy class of that session and the rule that decides it.
    """
    from hypaware import config
    from hypaware.privacy import folder_memory, ignored_sessions
    from hypaware.privacy.policy import PrivacyPolicy

    home = Home.from_environment()
    if session_id is not None:
        session_id = resolve_session(home, session_id, unknown=True)
    privacy = PrivacyPolicy.from_config(home, config.load(home).privacy)
    if session_id is not None:
        output.emit_result(_describe(privacy, home, session_id))
        return
    listed = [
        {"session_id": name, **each} for name, each in sorted(ignored_sessions.read_ignored_sessions(home).items())
    ]
    here = [{**_describe(privacy, home, each.session_id), "at": each.at} for each in _sessions_here(home)]
    gone = [
        {"folder": each.folder, "class": each.privacy_class.label, "last_seen_at": each.at}
        for each in folder_memory.list_missing_folders(home)
    ]
    if output.emit_document({"sessions": listed, "here": here, "folders_gone": gone}):
        return
    if listed:
        output.emit_table(
            ["excluded session", "class", "since"], [(x["session_id"], x.get("class"), x.get("at")) for x in listed]
        )
    else:
        output.emit("no session is excluded")
    if here:
        output.emit()
        output.emit_table(
            ["session in this folder", "class", "reason", "since"],
            [(x["session_id"], x["class"], x["why"], x["at"]) for x in here[:_MAX_SHOWN_SESSIONS]],
        )
    if gone:
        output.emit()
        output.emit_table(
            ["deleted folder", "class", "last seen"],
            [(x["folder"] or "(purged)", x["class"], x["last_seen_at"]) for x in gone[:_MAX_SHOWN_FOLDERS]],
        )
        if len(gone) > _MAX_SHOWN_FOLDERS:
            output.note(f"and {len(gone) - _MAX_SHOWN_FOLDERS} older ones (use --json to see all)")


def resolve_session(home: Home, given: str, unknown: bool, *, dry_run: bool = False) -> str:
    """Return the id of the session that starts with `given`. With `unknown`, return `given` if there is none.

    A session is known if it is in the lake or in the spool, if a client has its transcript or reported it, or if it was
    purged. Of purged sessions only a hash is kept, so they need the whole id. The index finds it quickly, but is
    brought up to date first; a dry run writes nothing and reads the lake instead.
    """
    from hypaware.index.sessions import name_nearest
    from hypaware.lake import tombstones
    from hypaware.privacy.ignored_sessions import check_session_id

    check_session_id(given)
    indexed = None if dry_run else _find_in_index(home, given)
    if indexed and given in indexed.ids:
        return given
    known = _known_sessions(home, without_messages=indexed is not None)
    matches = {each for each in known if each.startswith(given)} | set(indexed.ids if indexed else ())
    if indexed and not matches:
        # Rows that another program added to the lake are not in the index.
        known |= _lake_sessions(home)
        matches = {each for each in known if each.startswith(given)}
    purged = tombstones.read_tombstones(home).purge_filter.sessions
    if given in matches or tombstones.hash_purged_value("session", given) in purged or (unknown and not matches):
        return given
    if not matches:
        nearest = name_nearest(given, sorted(known | set(indexed.near if indexed else ())))
        raise HypError(
            f"no session is known whose id starts with {given}.{nearest} "
            "Pass --unknown if you mean a session that was never seen on this machine",
            kind="unknown_session",
        )
    if len(matches) > 1:
        shown = ", ".join(sorted(matches)[:_MAX_SHOWN_SESSIONS])
        more = f" and {len(matches) - _MAX_SHOWN_SESSIONS} more" if len(matches) > _MAX_SHOWN_SESSIONS else ""
        raise HypError(f"{given} is the start of several sessions: {shown}{more}", kind="ambiguous_session")
    return matches.pop()


@dataclass(frozen=True)
class _IndexedSessions:
    ids: tuple[str, ...]
    """The sessions of the index whose ids start as given."""
    near: tuple[str, ...]
    """If there is none, ids that may be meant."""


def _find_in_index(home: Home, given: str) -> _IndexedSessions | None:
    """Look the id up in the index. Return None if there is none, or if it does not have all rows yet."""
    from hypaware.index.sessions import list_ids, list_near_ids
    from hypaware.index.store import open_index

    if not home.index.is_file():
        return None
    with suppress(HypError, OSError), open_index(home) as index:
        if index.progress is None:
            found = tuple(list_ids(index.connection, given))
            return _IndexedSessions(found, () if found else tuple(list_near_ids(index.connection, given)))
    return None


def _known_sessions(home: Home, *, without_messages: bool) -> set[str]:
    """Return the ids of all sessions; `without_messages` leaves out those of the dataset that the index covers."""
    from hypaware.backfill.providers import load_providers
    from hypaware.clients.client import Source
    from hypaware.home import session_context
    from hypaware.index.schema import DATASET
    from hypaware.model import datasets
    from hypaware.privacy.ignored_sessions import read_ignored_sessions
    from hypaware.spool import reader

    left_out = {DATASET} if without_messages else set()
    known = _lake_sessions(home, left_out)
    known.update(read_ignored_sessions(home), session_context.all_session_columns(home.root))
    for dataset in set(datasets.list_names()) - left_out:
        # A segment that cannot be read must not keep a session from being ignored.
        rows = reader.read_spooled_rows(home, dataset, unreadable={})
        known |= {str(row["session_id"]) for row in rows if row.get("session_id")}
    for each in load_providers():
        try:
            for found in each.provider.find(dict(os.environ)):
                # The transcripts of all clients end with the id of their session.
                if isinstance(found, Source) and (name := _ENDS_WITH_ID.search(Path(found.path).stem)):
                    known.add(name[0])
        except Exception as error:
            # A broken plugin must not keep a session from being ignored or purged.
            output.warn(f"{each.name}: its transcripts cannot be listed: {summarize_error(error)}")
    return known


def _lake_sessions(home: Home, left_out: Collection[str] = ()) -> set[str]:
    from hypaware.iceberg.metadata import list_tables

    if not any(entry.name not in left_out for entry in list_tables(home)):
        return set()  # reading data files needs libraries that take long to load
    from hypaware.lake.read import list_session_ids

    return list_session_ids(home, left_out)


def _change(session_id: str | None, unknown: bool, change: Callable[[Home, str], bool], *, ignored: bool) -> None:
    """Change the given session, or the only recent one in the current folder."""
    home = Home.from_environment()
    session_id = _recent_session(home) if session_id is None else resolve_session(home, session_id, unknown)
    changed = change(home, session_id)
    if output.emit_document({"session_id": session_id, "ignored": ignored, "changed": changed}):
        return
    state = "excluded from recording" if ignored else "recorded, subject to the rules of its folder"
    output.emit(f"session {session_id} is {'' if changed else 'already '}{state}")
    if ignored and changed:
        output.note(
            f"rows recorded earlier are kept but not exported; to delete them: hyp purge --session {session_id}"
        )
    if not ignored and changed:
        output.note("to import what was skipped while it was ignored: hyp backfill")


def _recent_session(home: Home) -> str:
    here = _sessions_here(home)
    if not here:
        raise UsageError(
            "No attached client reported a session in this folder; pass its ID.", repair="hyp client status"
        )
    # Sessions are noted when they begin or change folders, so two recent ones cannot be told apart.
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    recent = [each for each in here if each.at >= since]
    if len(recent) > 1:
        raise UsageError(
            f"{len(recent)} sessions began in this folder within a day; pass the ID of one.",
            repair="hyp session status",
        )
    return here[0].session_id


def _sessions_here(home: Home) -> list[SessionFolder]:
    from hypaware.clients.session_hook import HookNotes
    from hypaware.home import session_context

    with suppress(OSError):
        HookNotes(home).absorb()
    try:
        return session_context.sessions_around(home, Path.cwd())
    except FileNotFoundError:
        # The current folder was deleted.
        return []


def _describe(privacy: PrivacyPolicy, home: Home, session_id: str) -> dict[str, Any]:
    from hypaware.home import session_context

    verdict = privacy.decide(None, session_id)
    return {
        "session_id": session_id,
        "class": verdict.privacy_class.label,
        "why": verdict.reason,
        "cwd": session_context.working_directory(home, session_id),
    }
