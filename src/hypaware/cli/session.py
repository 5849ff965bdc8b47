"""`hyp session`: which sessions stay out of the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.group import Group, json_option
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.capture.privacy import Privacy
    from hypaware.capture.session_folders import Noted

_EXAMPLE = "0dc91b82-3238-4907-98f3-ae0d1d845b97"
_SHOWN_HERE = 5
_SHOWN_GONE = 20


@click.group(
    "session",
    cls=Group,
    examples=["hyp session status", "hyp session ignore", f"hyp session ignore {_EXAMPLE}"],
)
def session() -> None:
    """Keep a session out of the record, and see what keeps one out.

    Without an ID it is the session that is at work in this folder, as far as an attached client told. Whole folders
    are kept out by a file .hypignore in them, or by privacy.folders in the config.
    """


@session.command("ignore", examples=["hyp session ignore", f"hyp session ignore {_EXAMPLE}"])
@click.argument("session_id", metavar="[ID]", required=False)
@json_option
def ignore(session_id: str | None, as_json: bool) -> None:
    """Record nothing of session ID from now on.

    Neither live nor by import, and nothing of it is exported. What was recorded before stays in the lake until it is
    purged.
    """
    from hypaware.capture import opt_outs

    home = Home.from_environment()
    chosen = _chosen(home, session_id)
    _tell(chosen, opt_outs.ignore(home, chosen), True, as_json)


@session.command("unignore", examples=["hyp session unignore", f"hyp session unignore {_EXAMPLE}"])
@click.argument("session_id", metavar="[ID]", required=False)
@json_option
def unignore(session_id: str | None, as_json: bool) -> None:
    """Record session ID again, as its folder says."""
    from hypaware.capture import opt_outs

    home = Home.from_environment()
    chosen = _chosen(home, session_id)
    _tell(chosen, opt_outs.unignore(home, chosen), False, as_json)


@session.command("status", examples=["hyp session status", f"hyp session status {_EXAMPLE} --json"])
@click.argument("session_id", metavar="[ID]", required=False)
@json_option
def status(session_id: str | None, as_json: bool) -> None:
    """Which sessions are kept out, and why.

    Without an ID: those that are, those at work in this folder, and folders that are gone and stay private. Of session
    ID: its class, and who decided it.
    """
    from hypaware.capture import opt_outs, seen_folders

    home = Home.from_environment()
    if session_id is not None:
        opt_outs.check(session_id)
        found = _judged(_privacy(home), home, session_id)
        if as_json:
            output.emit_json(found)
        else:
            output.emit_fields(found)
        return
    listed = [{"session_id": name, **each} for name, each in sorted(opt_outs.read(home).items())]
    privacy = _privacy(home)
    here = [{**_judged(privacy, home, each.session_id), "at": each.at} for each in _here(home)]
    gone = [
        {"folder": each.folder, "class": each.privacy.word, "last_seen_at": each.at} for each in seen_folders.gone(home)
    ]
    if as_json:
        output.emit_json({"sessions": listed, "here": here, "folders_gone": gone})
        return
    if listed:
        output.emit_table(
            ["kept out", "class", "since"], [(x["session_id"], x.get("class"), x.get("at")) for x in listed]
        )
    else:
        output.emit("no session is kept out")
    if here:
        output.emit()
        output.emit_table(
            ["at work here", "class", "why", "since"],
            [(x["session_id"], x["class"], x["why"], x["at"]) for x in here[:_SHOWN_HERE]],
        )
    if gone:
        output.emit()
        output.emit_table(
            ["folder that is gone", "class", "last seen"],
            [(x["folder"] or "(purged)", x["class"], x["last_seen_at"]) for x in gone[:_SHOWN_GONE]],
        )
        if len(gone) > _SHOWN_GONE:
            output.note(f"and {len(gone) - _SHOWN_GONE} more, seen before these (--json has them all)")


def _chosen(home: Home, session_id: str | None) -> str:
    """The named one, or the only one that can be meant."""
    from datetime import UTC, datetime, timedelta

    from hypaware.errors import UsageError

    if session_id is not None:
        return session_id
    here = _here(home)
    if not here:
        raise UsageError(
            "Which session? No attached client told of one in this folder: name its ID.",
            repair="hyp client status",
        )
    # A note is made when a session begins or moves: of two of today nobody can tell which one goes on.
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    recent = [each for each in here if each.at >= since]
    if len(recent) > 1:
        raise UsageError(
            f"Which session? {len(recent)} began in this folder within a day: name one.", repair="hyp session status"
        )
    return here[0].session_id


def _here(home: Home) -> list[Noted]:
    from pathlib import Path

    from hypaware.capture.session_folders import SessionFolders

    try:
        return SessionFolders(home).around(Path.cwd())
    except FileNotFoundError:
        # The folder itself is gone.
        return []


def _judged(privacy: Privacy, home: Home, session_id: str) -> dict[str, Any]:
    from hypaware.capture.session_folders import SessionFolders

    verdict = privacy.verdict(None, session_id)
    return {
        "session_id": session_id,
        "class": verdict.privacy.word,
        "why": verdict.why,
        "cwd": SessionFolders(home).cwd_of(session_id),
    }


def _privacy(home: Home) -> Privacy:
    from hypaware import config
    from hypaware.capture.privacy import Privacy

    return Privacy.of(home, config.load(home).privacy)


def _tell(session_id: str, changed: bool, ignored: bool, as_json: bool) -> None:
    if as_json:
        output.emit_json({"session_id": session_id, "ignored": ignored, "changed": changed})
        return
    now = "is kept out of the record" if ignored else "is recorded as its folder says"
    output.emit(f"session {session_id} {now}{'' if changed else ' already'}")
    if ignored and changed:
        output.note(
            f"what was recorded of it before stays, and is not exported; hyp purge --session {session_id} removes it"
        )
    if not ignored and changed:
        output.note("hyp backfill takes in what was left out meanwhile")
