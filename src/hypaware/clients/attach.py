"""Attach a client to the gateway and detach it: the steps that all clients share.

1. Under a lock, read the client's settings file and make the change in memory.
2. Make the attach record durable.
3. Replace the file atomically, if it is still the file that was read; otherwise start again.

If the process is killed after step 2, the file is unchanged, and the record recognizes it by its hash. Detach works in
the opposite order: the file first, the record last. A file that no other program changed gets its old bytes back.

The attach record is `<HYP_HOME>/clients/<name>/attach.json`, readable only by its owner:

    {v, client, path, existed, original_sha256, written_sha256, splices: [[at, removed, inserted]…],
     ours: {…}, before: {…}, base_url, upstreams: [{path_prefix, base_url, provider}…], at}

It contains nothing of the file except the changed parts. `upstreams` are the URLs that the client used before, if they
are not known from its declaration: the gateway forwards the client's requests to them.

@ref capture#attach
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from hypaware import faults
from hypaware.clients import original_install, settings_file
from hypaware.clients.settings_file import SettingsChanged, SettingsRefused, SettingsSnapshot, Splice, hash_text
from hypaware.errors import Retryable
from hypaware.home import Home, durable_files

VERSION = 1
_ATTEMPTS = 3
_after_record = faults.crash_point(
    "clients.attach.after-record", "the attach record is written, the client's file is not"
)
_after_write = faults.crash_point("clients.attach.after-write", "the client's file points at the gateway")
_after_restore = faults.crash_point(
    "clients.detach.after-restore", "the client's file is restored, the attach record still exists"
)
_after_forget = faults.crash_point("clients.detach.after-forget", "the attach record is removed")
Environment = Mapping[str, str]


@dataclass(frozen=True)
class PreviousUpstream:
    """Requests under the prefix are forwarded to this URL, without the prefix."""

    path_prefix: str
    base_url: str
    provider: str | None = None
    """The provider of the rows, if it is not that of the client's first upstream."""


@dataclass(frozen=True)
class AttachRecord:
    client: str
    path: str
    existed: bool
    original_sha256: str
    written_sha256: str
    splices: Sequence[Splice]
    base_url: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    """The values that the client's module wrote, to find them in a file that was changed since."""
    before: Mapping[str, Any] = field(default_factory=dict)
    """The values before attach."""
    upstreams: tuple[PreviousUpstream, ...] = ()
    at: str = ""


@dataclass(frozen=True)
class SettingsEdit:
    """A change to the text of a client's settings file."""

    splices: tuple[Splice, ...]
    base_url: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    upstreams: tuple[PreviousUpstream, ...] = ()
    notes: tuple[str, ...] = ()


class ClientSettings(Protocol):
    """Edits the text of a client's settings and changes no file. Methods raise SettingsRefused for unknown text."""

    name: str

    def path(self, environment: Environment) -> Path: ...

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        """Return the change that routes the client through `gateway` (`http://host:port`), if it is not yet."""
        ...

    def detach(self, text: str, record: AttachRecord | None) -> str:
        """Return the text without our settings, whatever else was changed in it.

        Without a record, remove only settings that can only be ours.
        """
        ...

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        """Return what the user must know if our settings are removed from this text."""
        ...

    def base_url(self, text: str) -> str | None:
        """Return the URL that the client sends its requests to according to this text, or None."""
        ...


@dataclass(frozen=True)
class AttachResult:
    client: str
    path: Path
    changed: bool
    diff: str
    base_url: str | None
    upstream: str | None = None
    notes: tuple[str, ...] = ()


def attach_client(
    home: Home, client: ClientSettings, gateway: str, environment: Environment, *, dry_run: bool = False
) -> AttachResult:
    path = client.path(environment)
    earlier = read_record(home, client.name)
    if earlier and earlier.path != os.path.realpath(path) and not dry_run:
        # The settings file has moved since the client was attached. There is one record, so detach the old file first.
        detach_client(home, client, environment)

    def attempt() -> AttachResult:
        current = settings_file.read_settings(path)
        block = original_install.find_block_in_text(client.name, path, current.text)
        if block and block.routes:
            # Otherwise the address of the original would become the gateway's upstream, and may be the gateway's own.
            raise SettingsRefused(
                f"{client.name} sends its requests through the JavaScript HypAware. Remove its settings first. "
                "Nothing was written",
                repair=block.detach,
            )
        previous = record = read_record(home, client.name)
        if record and record.path != str(current.path):
            record = None
        original = _without_our_settings(client, current, record)
        edit = client.attach(original, gateway, environment)
        if any(urlsplit(each.base_url).username is not None for each in edit.upstreams):
            raise SettingsRefused(
                f"a base URL of {client.name} contains a user name or a password. The gateway does not use them, "
                "because it would add them to the requests of every program on this machine. Pass them in a header "
                "of the client instead, then attach it. Nothing was written"
            )
        new_text = settings_file.apply_splices(original, edit.splices)
        # Our settings are complete, though moved within the file: leave a working file alone.
        if (
            record
            and record.base_url == edit.base_url
            and not client.attach(current.text, gateway, environment).splices
        ):
            new_text = current.text
        outcome = AttachResult(
            client.name,
            current.path,
            new_text != current.text,
            settings_file.diff_text(current.path, current.text, new_text),
            edit.base_url,
            name_upstreams(edit.upstreams),
            (*edit.notes, *(client.explain_removal(current.text, environment) if new_text != current.text else ())),
        )
        if dry_run:
            return outcome
        if new_text != current.text or record is None:
            if (
                settings_file.undo_splices(new_text, edit.splices) != original
                or client.base_url(new_text) != edit.base_url
            ):
                raise SettingsRefused(f"{path} cannot be changed reversibly. Nothing was written")
            write_record(home, _make_record(client, current, original, new_text, edit, record))
            _after_record()
        if new_text != current.text:
            try:
                settings_file.replace_settings(current, new_text)
            except (SettingsRefused, SettingsChanged):
                # The file was not changed, so restore its record too.
                if previous is None:
                    durable_files.remove_durably(record_path(home, client.name))
                else:
                    write_record(home, previous)
                raise
            _after_write()
        return outcome

    return _run(path, attempt, dry_run=dry_run)


def detach_client(
    home: Home, client: ClientSettings, environment: Environment, *, dry_run: bool = False
) -> AttachResult:
    record = read_record(home, client.name)
    path = Path(record.path) if record else client.path(environment)

    def attempt() -> AttachResult:
        current = settings_file.read_settings(path)
        record = read_record(home, client.name)
        new_text = _without_our_settings(client, current, record)
        diff = settings_file.diff_text(current.path, current.text, new_text)
        changed = new_text != current.text
        notes = client.explain_removal(current.text, environment) if changed else ()
        outcome = AttachResult(client.name, current.path, changed, diff, client.base_url(new_text), notes=notes)
        if dry_run:
            return outcome
        if new_text != current.text:
            if record and not record.existed and not new_text.strip():
                settings_file.remove_settings(current)
            else:
                settings_file.replace_settings(current, new_text)
            _after_restore()
        remove_record(home, client.name)
        _after_forget()
        return outcome

    if not path.parent.is_dir():
        if not dry_run:
            remove_record(home, client.name)
        return AttachResult(client.name, path, False, "", None)
    return _run(path, attempt, dry_run=dry_run)


def _without_our_settings(client: ClientSettings, current: SettingsSnapshot, record: AttachRecord | None) -> str:
    if not current.exists:
        return ""
    digest = hash_text(current.text)
    if record is not None and digest == record.original_sha256:
        return current.text
    if record is not None and digest == record.written_sha256:
        original = settings_file.undo_splices(current.text, record.splices) or ""
        if hash_text(original) == record.original_sha256:
            return original
    return client.detach(current.text, record)


def _make_record(
    client: ClientSettings,
    current: SettingsSnapshot,
    original: str,
    new_text: str,
    edit: SettingsEdit,
    earlier: AttachRecord | None,
) -> AttachRecord:
    return AttachRecord(
        client=client.name,
        path=str(current.path),
        # If the user removed the file since the first attach, it did not exist before this one.
        existed=current.exists and (earlier is None or earlier.existed),
        original_sha256=hash_text(original),
        written_sha256=hash_text(new_text),
        splices=edit.splices,
        base_url=edit.base_url,
        # If the process is killed before it writes the file, the settings of the earlier attach are still in it.
        ours={
            name: list(dict.fromkeys((*value, *(earlier.ours.get(name) or () if earlier else ()))))
            for name, value in edit.ours.items()
        },
        before=edit.before,
        upstreams=edit.upstreams,
        at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def _run(path: Path, attempt: Callable[[], AttachResult], *, dry_run: bool) -> AttachResult:
    with settings_file.name_refused_file(path), nullcontext() if dry_run else settings_file.lock_folder(path):
        for _ in range(_ATTEMPTS):
            try:
                return attempt()
            except SettingsChanged:
                continue
    raise Retryable(
        f"another program keeps changing {path}. Nothing was written; close the client and try again",
        kind="client_settings_busy",
    )


def find_proxy_exception(environment: Environment, proxies: Sequence[str], host: str) -> tuple[str, str] | None:
    """Return the variable, with its value, that keeps requests to `host` from a proxy; None if they need none.

    `proxies` names, in lower case, the variables from which the client takes a proxy for plain HTTP.
    """
    if not any(environment.get(spelling) for name in proxies for spelling in (name, name.upper())):
        return None
    name = "no_proxy" if environment.get("no_proxy") else "NO_PROXY"
    listed = environment.get(name, "")
    exceptions = listed.replace(",", " ").split()
    return None if host in exceptions or "*" in exceptions else (name, ",".join((*exceptions, host)))


def record_path(home: Home, client: str) -> Path:
    return home.root / "clients" / client / "attach.json"


def name_upstreams(upstreams: Sequence[PreviousUpstream]) -> str | None:
    """Return the URLs, for people; None if there is none."""
    return ", ".join(dict.fromkeys(each.base_url for each in upstreams)) or None


def parse_upstreams(record: Mapping[str, Any]) -> tuple[PreviousUpstream, ...]:
    """Return the upstreams of an attach record. Those of earlier versions hold one at most, as `upstream`."""
    found = record["upstreams"] if "upstreams" in record else filter(None, [record["upstream"]])
    return tuple(PreviousUpstream(**each) for each in found)


def left_upstream_path(record: Path) -> Path:
    """Return the path of the file that detach leaves next to the attach record."""
    return record.with_name("upstream.json")


def read_record(home: Home, client: str) -> AttachRecord | None:
    """Return the record; None if it does not exist or cannot be read. Detach then relies on the file alone."""
    try:
        found = json.loads(record_path(home, client).read_bytes())
        if found.pop("v") != VERSION:
            return None
        upstreams = parse_upstreams(found)
        found = {name: value for name, value in found.items() if name not in ("upstream", "upstreams")}
        splices = tuple(Splice(int(at), str(removed), str(inserted)) for at, removed, inserted in found.pop("splices"))
        return AttachRecord(**found, splices=splices, upstreams=upstreams)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_record(home: Home, record: AttachRecord) -> None:
    path = record_path(home, record.client)
    durable_files.make_dir(path.parent)
    durable_files.write_atomic(path, json.dumps({"v": VERSION, **asdict(record)}, indent=1).encode())


def remove_record(home: Home, client: str) -> None:
    """Remove the record, but keep its upstreams in a file next to it: open sessions still call the gateway."""
    path, left = record_path(home, client), left_upstream_path(record_path(home, client))
    if not path.exists():
        return
    record = read_record(home, client)
    if record and record.upstreams:
        kept = {"client": client, "upstreams": [asdict(each) for each in record.upstreams]}
        durable_files.write_atomic(left, json.dumps(kept).encode())
    elif left.exists():
        durable_files.remove_durably(left)
    durable_files.remove_durably(path)
