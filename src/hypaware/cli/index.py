"""`hyp index`: the state of the index, and building it again."""

from __future__ import annotations

import click

from hypaware.cli import output
from hypaware.cli.command import Command, Group, json_option
from hypaware.cli.jobs import open_progress
from hypaware.errors import NotReady
from hypaware.home import Home
from hypaware.text import format_count, format_size


@click.group("index", cls=Group, examples=["hyp index status", "hyp index rebuild"])
def index() -> None:
    """Show or rebuild the index, which sessions, show, search, usage and overview read.

    The index is derived from the lake and kept up to date automatically. It may be deleted at any time.
    """


@index.command("status", cls=Command, examples=["hyp index status", "hyp index status --json"])
@json_option
def status() -> None:
    """Show how large the index is, and how many rows it lacks."""
    from hypaware.index.builder import read_index_status

    document = read_index_status(_existing_home())
    if output.emit_document(document):
        return
    if document["version"] is None:
        output.emit("There is no index yet; the next reading command builds it.")
    else:
        rows, size = format_count(document["rows"], "row"), format_size(document["bytes"])
        output.emit(f"{rows}, {size}, version {document['version']}")
    if document["lag_rows"]:
        state = "being added" if document["building"] else "not yet added"
        verb = "is" if document["lag_rows"] == 1 else "are"
        output.emit(f"{format_count(document['lag_rows'], 'row')} of the lake and the spool {verb} {state}")


@index.command("rebuild", cls=Command, examples=["hyp index rebuild"])
@json_option
def rebuild() -> None:
    """Delete the index and build it from the lake and the spool. Nothing else is changed."""
    from hypaware.index.builder import read_index_status
    from hypaware.index.refresh import refresh_index
    from hypaware.index.store import drop_index

    home = _existing_home()
    drop_index(home)
    with open_progress() as progress:
        report = refresh_index(home, on_progress=lambda done, total: progress.report("building the index", done, total))
    if report.warning:
        output.warn(report.warning)
    document = read_index_status(home)
    if not output.emit_document(document):
        output.emit(f"The index has {format_count(document['rows'], 'row')}, {format_size(document['bytes'])}.")


def _existing_home() -> Home:
    home = Home.from_environment()
    if not home.root.is_dir():
        raise NotReady(f"no home at {home.root}", kind="no_home", repair="hyp setup")
    return home
