"""Attach a client to the gateway and detach it: the steps that all clients share.

1. Under a lock, read the client's settings file and make the change in memory.
2. Make the attach record durable.
3. Replace the file atomically, if it is still the file that was read; otherwise start again.

If the process is killed after step 2, the file is unchanged, and the record recognizes it by its hash. After step 3
nothing is left to do. Detach works in the opposite order: the file first, the record last. A file that nobody else
changed gets its old bytes back. From a changed file, exactly our settings are removed and the previous values
restored.

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

_after_record = faults.point("clients.attach.after-record", "the attach record is written, the client's file is not")
_after_write = faults.point("clients.attach.after-write", "the client's file points at the gateway")
_after_restore = faults.point(
    "clients.detach.after-restore", "the client's file is restored, the attach record still exists"
)
_after_forget = faults.point("clients.detach.after-forget", "the attach record is removed")

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Edit:
    """A change to the text of a client's settings file."""

    splices: tuple[Splice, ...]
    base_url: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    upstream: OwnUpstream | None = None
    notes: tuple[str, ...] = ()


class Settings(Protocol):
    """Edits the text of a client's settings. The methods change no file; they raise Refused for an unknown form."""

    name: str

    def path(self, environment: Environment) -> Path: ...

    def attach(self, text: str, gateway: str, environment: Environment) -> Edit:
        """Return the change that routes the client through `gateway` (`http://host:port`), if it is not yet."""
        ...

    def detach(self, text: str, record: Record | None) -> str:
        """Return the text without our settings, whatever else was changed in it.

        Without a record, remove only settings that can only be ours.
        """
        ...

    def base_url(self, text: str) -> str | None:
        """Return the URL that the client sends its requests to according to this text, or None."""
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
        # The settings file has moved since the client was attached. There is one record, so detach the old file first.
        detach(home, client, environment)

    def attempt() -> Outcome:
        current = settings_file.read(path)
        previous = record = undo.read(home, client.name)
        if record and record.path != str(current.path):
            record = None
        original = _restored(client, current, record)
        edit = client.attach(original, gateway, environment)
        new_text = splice.apply(original, edit.splices)
        # Our settings are complete, though moved within the file: leave a working file alone.
        if (
            record
            and record.base_url == edit.base_url
            and not client.attach(current.text, gateway, environment).splices
        ):
            new_text = current.text
        outcome = _outcome(client, current, new_text, edit)
        if dry_run:
            return outcome
        if new_text != current.text or record is None:
            if splice.undo(new_text, edit.splices) != original or client.base_url(new_text) != edit.base_url:
                raise Refused(f"{path} cannot be changed reversibly. Nothing was written")
            undo.write(home, _record(client, current, original, new_text, edit, record))
            _after_record()
        if new_text != current.text:
            try:
                settings_file.replace(current, new_text)
            except (Refused, Changed):
                # The file was not changed, so restore its record too.
                undo.put_back(home, client.name, previous)
                raise
            _after_write()
        return outcome

    with settings_file.named(path):
        return attempt() if dry_run else _guarded(path, attempt)


def detach(home: Home, client: Settings, environment: Environment, *, dry_run: bool = False) -> Outcome:
    record = undo.read(home, client.name)
    path = Path(record.path) if record else client.path(environment)

    def attempt() -> Outcome:
        current = settings_file.read(path)
        record = undo.read(home, client.name)
        new_text = _restored(client, current, record)
        outcome = replace(_outcome(client, current, new_text, None), base_url=client.base_url(new_text))
        if dry_run:
            return outcome
        if new_text != current.text:
            if record and not record.existed and not new_text.strip():
                settings_file.remove(current)
            else:
                settings_file.replace(current, new_text)
            _after_restore()
        undo.remove(home, client.name)
        _after_forget()
        return outcome

    if not path.parent.is_dir():
        if not dry_run:
            undo.remove(home, client.name)
        return Outcome(client.name, path, False, "", None)
    with settings_file.named(path):
        return attempt() if dry_run else _guarded(path, attempt)


def _restored(client: Settings, current: Snapshot, record: Record | None) -> str:
    """Return the text without our settings."""
    if not current.exists:
        return ""
    digest = sha256(current.text)
    if record is not None and digest == record.original_sha256:
        return current.text
    if record is not None and digest == record.written_sha256:
        try:
            original = splice.undo(current.text, record.splices)
        except splice.NotThere:
            original = ""
        if sha256(original) == record.original_sha256:
            return original
    return client.detach(current.text, record)


def _outcome(client: Settings, current: Snapshot, new_text: str, edit: Edit | None) -> Outcome:
    return Outcome(
        client.name,
        current.path,
        new_text != current.text,
        settings_file.diff(current.path, current.text, new_text),
        edit.base_url if edit else None,
        edit.upstream.base_url if edit and edit.upstream else None,
        edit.notes if edit else (),
    )


def _record(
    client: Settings, current: Snapshot, original: str, new_text: str, edit: Edit, earlier: Record | None
) -> Record:
    return Record(
        client=client.name,
        path=str(current.path),
        # If the user removed the file since the first attach, it did not exist before this one.
        existed=current.exists and (earlier is None or earlier.existed),
        original_sha256=sha256(original),
        written_sha256=sha256(new_text),
        splices=edit.splices,
        base_url=edit.base_url,
        # If the process is killed before it writes the file, the settings of the earlier attach are still in it.
        ours={name: _both(value, earlier.ours.get(name) if earlier else None) for name, value in edit.ours.items()},
        before=edit.before,
        upstream=edit.upstream,
        at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _both(new: list[str], old: list[str] | None) -> list[str]:
    return list(dict.fromkeys((*new, *(old or ()))))


def _guarded(path: Path, attempt: Callable[[], Outcome]) -> Outcome:
    with settings_file.alone(path):
        for _ in range(_ATTEMPTS):
            try:
                return attempt()
            except Changed:
                continue
    raise Retryable(
        f"another program keeps changing {path}. Nothing was written; close the client and try again",
        kind="client_settings_busy",
    )
