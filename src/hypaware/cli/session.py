"""`hyp session`: which sessions stay out of the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.group import Group, json_option
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.capture.privacy import Privacy


@click.group(
    "session",
    cls=Group,
    examples=["hyp session ignore 0dc91b82-3238-4907-98f3-ae0d1d845b97", "hyp session status"],
)
def session() -> None:
    """Keep a session out of the record, and see what keeps one out.

    Whole folders are kept out by a file .hypignore in them, or by privacy.folders in the config.
    """


@session.command("ignore", examples=["hyp session ignore 0dc91b82-3238-4907-98f3-ae0d1d845b97"])
@click.argument("session_id", metavar="ID")
@json_option
def ignore(session_id: str, as_json: bool) -> None:
    """Record nothing of session ID from now on, live or by import. What was recorded before stays."""
    from hypaware.capture import opt_outs

    _tell(session_id, opt_outs.ignore(Home.from_environment(), session_id), True, as_json)


@session.command("unignore", examples=["hyp session unignore 0dc91b82-3238-4907-98f3-ae0d1d845b97"])
@click.argument("session_id", metavar="ID")
@json_option
def unignore(session_id: str, as_json: bool) -> None:
    """Record session ID again, as its folder says."""
    from hypaware.capture import opt_outs

    _tell(session_id, opt_outs.unignore(Home.from_environment(), session_id), False, as_json)


@session.command("status", examples=["hyp session status", "hyp session status ID --json"])
@click.argument("session_id", metavar="[ID]", required=False)
@json_option
def status(session_id: str | None, as_json: bool) -> None:
    """The sessions that are kept out; of session ID, its class and who decided it."""
    from hypaware.capture import opt_outs

    home = Home.from_environment()
    if session_id is not None:
        opt_outs.check(session_id)
        contexts = _contexts(home)
        verdict = _privacy(home, contexts).verdict(None, session_id)
        found = {
            "session_id": session_id,
            "class": verdict.privacy.word,
            "why": verdict.why,
            "cwd": contexts.get(session_id, {}).get("cwd"),
        }
        if as_json:
            output.emit_json(found)
        else:
            output.emit_fields(found)
        return
    listed = [{"session_id": name, **each} for name, each in sorted(opt_outs.read(home).items())]
    if as_json:
        output.emit_json({"sessions": listed})
    elif listed:
        output.emit_table(
            ["session", "class", "since"], [(x["session_id"], x.get("class"), x.get("at")) for x in listed]
        )
    else:
        output.emit("no session is kept out")


def _contexts(home: Home) -> Any:
    from hypaware.clients.claude.session_context import records

    return records({"HYP_HOME": str(home.root)})


def _privacy(home: Home, contexts: Any) -> Privacy:
    from hypaware import config
    from hypaware.capture.privacy import Privacy

    found = getattr(config.load(home), "privacy", None)
    return Privacy(home, found.folders if found else {}, cwd_of=lambda name: contexts.get(name, {}).get("cwd"))


def _tell(session_id: str, changed: bool, ignored: bool, as_json: bool) -> None:
    if as_json:
        output.emit_json({"session_id": session_id, "ignored": ignored, "changed": changed})
        return
    now = "is kept out of the record" if ignored else "is recorded as its folder says"
    output.emit(f"session {session_id} {now}{'' if changed else ' already'}")
    if ignored and changed:
        output.note(f"what was recorded of it before stays; hyp purge --session {session_id} removes it")
