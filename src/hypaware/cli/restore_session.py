"""`hyp restore-session`: give a recorded session back to its client, or to another one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option, yes_option
from hypaware.cli.index_reader import open_for_reading
from hypaware.errors import HypError
from hypaware.text import escape_cell, format_count

if TYPE_CHECKING:
    from hypaware.session_restore import RestorePlan


@click.command(
    "restore-session",
    cls=Command,
    examples=[
        "hyp restore-session 0dc91b82",
        "hyp restore-session 0dc91b82 --dry-run",
        "hyp restore-session 0dc91b82 --to codex",
        "hyp restore-session 0dc91b82 -o session.jsonl",
    ],
)
@click.argument("session", metavar="ID")
@click.option(
    "--to",
    "client",
    metavar="CLIENT",
    help="Write the session for this client, for example codex.  [default: the client that recorded it]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be written and what would be lost; write nothing.")
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(path_type=Path),
    help="Write the transcript to this new file, not to the client's folder, and without subagents.",
)
@yes_option
@json_option
def restore_session(session: str, client: str | None, dry_run: bool, target: Path | None, yes: bool) -> None:
    """Write a recorded session as a transcript that a client can resume.

    ID is the id of the session, or its beginning. A session that its client has deleted gets its transcript back, with
    the same ids, so that it is not recorded twice. For another client (--to), the conversation becomes a new session.
    Existing transcripts are never changed. The command says what could not be carried over, and how to resume the
    session.
    """
    from hypaware.index.sessions import find_session
    from hypaware.session_restore import plan_restore, write_transcript

    environment = {"HOME": str(Path.home()), **os.environ}
    with open_for_reading() as index:
        plan = plan_restore(index, find_session(index, session), client, environment)
    written: list[Path] = []
    if not dry_run and (plan.existing is None or target is not None):
        # Nothing is replaced, so no confirmation is needed without a terminal.
        if sys.stdin.isatty():
            output.confirm(_describe(plan, target), yes)
        written = write_transcript(plan, None if target is None else _new_file(target))
    document = {**plan.as_document(), "dry_run": dry_run, "written": [str(path) for path in written]}
    if output.emit_document(document):
        return
    _print(plan, written, target, dry_run=dry_run)


def _new_file(target: Path) -> Path:
    path = target.expanduser().absolute()
    if not path.parent.is_dir():
        raise HypError(f"the folder {path.parent} does not exist", kind="no_folder")
    return path


def _describe(plan: RestorePlan, target: Path | None) -> str:
    where = target or plan.transcript.files[-1].path
    count = format_count(plan.transcript.messages, "message")
    if plan.is_carried:
        return f"This writes {count} as a new session of {plan.about}, to {where}."
    return f"This writes {count} of session {plan.session_id} to {where}."


def _print(plan: RestorePlan, written: list[Path], target: Path | None, *, dry_run: bool) -> None:
    if plan.existing is not None and target is None:
        output.emit(f"{plan.about} has this session: {plan.existing}")
    else:
        files = [target] if target is not None else [file.path for file in plan.transcript.files]
        more = len(files if dry_run else written) - 1
        beside = f", and {format_count(more, 'file')} of its subagents" if more > 0 else ""
        content = _name_content(plan) if target is None else f"the main thread of session {plan.session_id}"
        output.emit(f"{'would write' if dry_run else 'wrote'} {content}:")
        output.emit(f"  {files[-1]}{beside}")
        if plan.losses:
            output.emit("not carried over:")
        for each in plan.losses:
            output.emit(f"  {each}")
    if target is not None or plan.resume is None:
        return
    output.emit(f"resume it with: {plan.resume}")
    if plan.folder is not None and not Path(plan.folder).is_dir():
        output.note(f"the folder {escape_cell(plan.folder)} does not exist on this machine; create it to resume there")


def _name_content(plan: RestorePlan) -> str:
    count = format_count(plan.transcript.messages, "message")
    if plan.is_carried:
        return f"{count} of {plan.session_id} as session {plan.transcript.session_id} of {plan.about}"
    return f"{count} of session {plan.session_id} for {plan.about}"
