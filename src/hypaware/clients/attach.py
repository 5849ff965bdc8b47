"""Points a client at the gateway, and back: the steps that are the same for every client.

1. Under a lock, the client's settings file is read, and the change is made in memory.
2. The undo record becomes durable.
3. The file is replaced in one step, if it is still the one that was read; else all of it is done again.

Killed after 2, the file is as it was, and the record knows it by its hash. Killed after 3, there is nothing left to
do. Detach goes the other way: the file first, the record last. A file that nobody touched since gets its old bytes
back; in one that was changed, exactly what is ours is taken out, and what stood in its place before is put back.

@ref capture#attach
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from hypaware import faults
from hypaware.clients import settings_file, splice, undo
from hypaware.clients.settings_file import Changed, Refused, Snapshot, sha256
from hypaware.clients.splice import Splice
from hypaware.clients.undo import OwnUpstream, Record
from hypaware.errors import Retryable
from hypaware.home import Home

_ATTEMPTS = 3

_after_record = faults.point("clients.attach.after-record", "the undo record is written, the client's file is not")
_after_write = faults.point("clients.attach.after-write", "the client's file points at the gateway")
_after_restore = faults.point("clients.detach.after-restore", "the client's file is restored, the record still there")
_after_forget = faults.point("clients.detach.after-forget", "the undo record is gone")

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Edit:
    """What a client's module wants to be changed in a text."""

    splices: tuple[Splice, ...]
    base_url: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    upstream: OwnUpstream | None = None
    notes: tuple[str, ...] = ()


class Settings(Protocol):
    """What a client's module knows. Its functions change no file and raise Refused for what they do not understand."""

    name: str

    def path(self, environment: Environment) -> Path: ...

    def attach(self, text: str, gateway: str, environment: Environment) -> Edit:
        """The change that makes the client go through `gateway` (`http://host:port`); none if it does already."""
        ...

    def detach(self, text: str, record: Record | None) -> str:
        """The text without what is ours, whatever else was changed in it; without a record, what can only be ours."""
        ...

    def base_url(self, text: str) -> str | None:
        """Where the client sends its requests by this text; None where it says nothing."""
        ...


@dataclass(frozen=True)
class Outcome:
    client: str
    path: Path
    changed: bool
    diff: str
    base_url: str | None
    upstream: str | None = None
    notes: tuple[str, ...] = ()


def attach(home: Home, client: Settings, gateway: str, environment: Environment, *, dry_run: bool = False) -> Outcome:
    path = client.path(environment)
    earlier = undo.read(home, client.name)
    if earlier and earlier.path != os.path.realpath(path) and not dry_run:
        # It was attached where its settings lay before; there is one record, so that place comes first.
        detach(home, client, environment)

    def once() -> Outcome:
        now = settings_file.read(path)
        known = record = undo.read(home, client.name)
        if record and record.path != str(now.path):
            record = None
        original = _restored(client, now, record)
        edit = client.attach(original, gateway, environment)
        wanted = splice.apply(original, edit.splices)
        # Still there, though in another place: a file that works is left as it is.
        if record and record.base_url == edit.base_url and not client.attach(now.text, gateway, environment).splices:
            wanted = now.text
        outcome = _outcome(client, now, wanted, edit)
        if dry_run:
            return outcome
        if wanted != now.text or record is None:
            if splice.undo(wanted, edit.splices) != original or client.base_url(wanted) != edit.base_url:
                raise Refused(f"{path} cannot be changed in a way that could be taken back: nothing was written")
            undo.write(home, _record(client, now, original, wanted, edit, record))
            _after_record()
        if wanted != now.text:
            try:
                settings_file.replace(now, wanted)
            except (Refused, Changed):
                # The file is as it was, and so must be what is known of it.
                undo.put_back(home, client.name, known)
                raise
            _after_write()
        return outcome

    with settings_file.named(path):
        return once() if dry_run else _guarded(path, once)


def detach(home: Home, client: Settings, environment: Environment, *, dry_run: bool = False) -> Outcome:
    record = undo.read(home, client.name)
    path = Path(record.path) if record else client.path(environment)

    def once() -> Outcome:
        now = settings_file.read(path)
        record = undo.read(home, client.name)
        wanted = _restored(client, now, record)
        outcome = replace(_outcome(client, now, wanted, None), base_url=client.base_url(wanted))
        if dry_run:
            return outcome
        if wanted != now.text:
            if record and not record.existed and not wanted.strip():
                settings_file.remove(now)
            else:
                settings_file.replace(now, wanted)
            _after_restore()
        undo.remove(home, client.name)
        _after_forget()
        return outcome

    if not path.parent.is_dir():
        if not dry_run:
            undo.remove(home, client.name)
        return Outcome(client.name, path, False, "", None)
    with settings_file.named(path):
        return once() if dry_run else _guarded(path, once)


def _restored(client: Settings, now: Snapshot, record: Record | None) -> str:
    """The text as it would be without us."""
    if not now.exists:
        return ""
    current = sha256(now.text)
    if record is not None and current == record.original_sha256:
        return now.text
    if record is not None and current == record.written_sha256:
        try:
            original = splice.undo(now.text, record.splices)
        except splice.NotThere:
            original = ""
        if sha256(original) == record.original_sha256:
            return original
    return client.detach(now.text, record)


def _outcome(client: Settings, now: Snapshot, wanted: str, edit: Edit | None) -> Outcome:
    return Outcome(
        client.name,
        now.path,
        wanted != now.text,
        settings_file.diff(now.path, now.text, wanted),
        edit.base_url if edit else None,
        edit.upstream.base_url if edit and edit.upstream else None,
        edit.notes if edit else (),
    )


def _record(client: Settings, now: Snapshot, original: str, wanted: str, edit: Edit, earlier: Record | None) -> Record:
    return Record(
        client=client.name,
        path=str(now.path),
        # One that its user removed since the first attach was not there before this one.
        existed=now.exists and (earlier is None or earlier.existed),
        original_sha256=sha256(original),
        written_sha256=sha256(wanted),
        splices=edit.splices,
        base_url=edit.base_url,
        # Killed before the file is written, what an earlier attach wrote still stands in it.
        ours={name: _both(value, earlier.ours.get(name) if earlier else None) for name, value in edit.ours.items()},
        before=edit.before,
        upstream=edit.upstream,
        at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _both(new: list[str], old: list[str] | None) -> list[str]:
    return list(dict.fromkeys((*new, *(old or ()))))


def _guarded(path: Path, once: Callable[[], Outcome]) -> Outcome:
    with settings_file.alone(path):
        for _ in range(_ATTEMPTS):
            try:
                return once()
            except Changed:
                continue
    raise Retryable(
        f"{path} is being changed by somebody else all the time; nothing was written. Close the client and try again",
        kind="client_settings_busy",
    )
