"""The checks of `hyp doctor` on the home: databases, permissions, file system, disk, config, secrets and clock."""

from __future__ import annotations

import os
import shlex
import socket
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from hypaware import text
from hypaware.config.shared_lake import find_shared_lake, to_shared_lake
from hypaware.errors import NotReady
from hypaware.home import Home, durable_files
from hypaware.home.durable_files import open_regular_file
from hypaware.home.sqlite_readonly import has_table, open_readonly
from hypaware.iceberg import metadata
from hypaware.iceberg.catalog import read_catalog
from hypaware.status import home_health
from hypaware.status.diagnostics import CheckResult, StatusInput, check_failed, check_ok, check_warning
from hypaware.status.storage import MAX_CLOCK_STEP_BACK, LakeStatus, SpoolStatus
from hypaware.text import summarize_error

_PROBE_BYTES = 4096
_SLOW_SECONDS = 0.25
_CLOCK_DIFFERENCE_SECONDS = 300.0
_GROUP_AND_OTHERS = 0o077


def check_tombstones(inputs: StatusInput) -> Iterator[CheckResult]:
    if inputs.home.tombstones.exists():
        yield from check_database("tombstones", inputs.home.tombstones, "hyp restore --help")


def check_key_index(inputs: StatusInput) -> Iterator[CheckResult]:
    """Check that the key index is intact and covers the tables. The next flush indexes missing rows."""
    (check,) = check_database("key_index", inputs.home.keys, "hyp verify --repair")
    behind = _tables_ahead(inputs.home) if check.status == "ok" and inputs.home.keys.exists() else []
    if behind:
        check = check_warning("key_index", f"the key index is behind the table {', '.join(behind)}", "hyp flush")
    yield check


def check_database(name: str, path: Path, repair: str) -> Iterator[CheckResult]:
    if not path.exists():
        yield check_ok(name, "does not exist yet")
        return
    try:
        with open_readonly(path) as db:
            answer = db.execute("PRAGMA quick_check(1)").fetchone()
    except (OSError, sqlite3.Error) as error:
        yield check_failed(name, f"{path} cannot be read: {summarize_error(error)}", repair)
        return
    if answer == ("ok",):
        yield check_ok(name, f"{path.name} is intact")
    else:
        yield check_failed(name, f"{path} is damaged: {answer[0] if answer else 'no answer'}", repair)


def _tables_ahead(home: Home) -> list[str]:
    """Return the tables whose newest rows are not in the key index."""
    with open_readonly(home.keys) as db:
        indexed = dict(db.execute("SELECT dataset, through FROM applied")) if has_table(db, "applied") else {}
    behind = []
    for entry in metadata.list_tables(home):
        try:
            floor = metadata.read_metadata(entry.metadata).floor
        except (OSError, ValueError, KeyError):
            continue  # the table is damaged, which `hyp status` reports
        if indexed.get(entry.name, 0) < floor:
            behind.append(entry.name)
    return behind


def check_permissions(inputs: StatusInput) -> Iterator[CheckResult]:
    root = inputs.home.root
    if not root.is_dir():
        yield check_ok("permissions", f"{root} does not exist yet; only you will have access")
        return
    status, shown = root.stat(), shlex.quote(str(root))
    if status.st_uid != os.getuid():
        yield check_failed("permissions", f"{root} belongs to another user (uid {status.st_uid})", f"ls -ld {shown}")
    elif status.st_mode & _GROUP_AND_OTHERS:
        message = f"other users have access to {root} ({stat.S_IMODE(status.st_mode):04o})"
        yield check_failed("permissions", message, f"chmod -R go= {shown}")
    elif paths := _accessible_files(root):
        files = text.format_count(len(paths), "file is", "files are")
        message = f"{files} open to other users and protected only by the home's folder: {paths[0]}"
        yield check_warning("permissions", message, f"chmod -R go= {shown}")
    else:
        yield check_ok("permissions", f"only you have access to {root}")


def _accessible_files(root: Path) -> list[Path]:
    found = []
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(folder, name)
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue
            if mode & _GROUP_AND_OTHERS and not stat.S_ISLNK(mode) and not stat.S_ISSOCK(mode):
                found.append(path)
    return sorted(found)


def check_file_system(inputs: StatusInput) -> Iterator[CheckResult]:
    folder = home_health.nearest_folder(inputs.home)
    try:
        durable_files.reject_network_file_system(folder)
    except NotReady as error:
        yield check_failed("file_system", error.message, *error.repair)
        return
    kind = durable_files.file_system_type(folder) or "unknown, but not a known network file system"
    yield check_ok("file_system", kind)


def check_disk_space(inputs: StatusInput) -> Iterator[CheckResult]:
    found = home_health.inspect_disk(inputs, LakeStatus(), SpoolStatus())
    for each in found.diagnostics:
        yield CheckResult("disk", "failed" if each.severity == "error" else "warning", each.message, each.repair)
    if not found.diagnostics:
        free, total = (text.format_size(found.facts[name]) for name in ("free_bytes", "total_bytes"))
        yield check_ok("disk", f"{free} free of {total}")


def check_sync(inputs: StatusInput) -> Iterator[CheckResult]:
    """Write, sync and remove a small file."""
    root = inputs.home.root
    if not root.is_dir():
        yield check_ok("sync", "not tested: the home does not exist yet")
        return
    try:
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-") as probe:
            start = time.perf_counter()
            durable_files.write_all(probe.fileno(), os.urandom(_PROBE_BYTES))
            durable_files.fsync_fd(probe.fileno())
            elapsed = time.perf_counter() - start
    except OSError as error:
        yield check_failed("sync", f"cannot write to {root}: {error.strerror}", f"ls -ld {shlex.quote(str(root))}")
        return
    detail = f"a synced write takes {1000 * elapsed:.1f} ms"
    slow = f"{detail}, which is slow: live recording waits for it"
    yield check_ok("sync", detail) if elapsed < _SLOW_SECONDS else check_warning("sync", slow)


def check_config(inputs: StatusInput) -> Iterator[CheckResult]:
    found = home_health.inspect_config(inputs.home)
    for each in found.diagnostics:
        yield check_failed("config", each.message, *each.repair)
    if not found.diagnostics:
        exists = found.facts.facts["exists"]
        yield check_ok("config", f"{inputs.home.config} is valid" if exists else "there is none; the defaults are used")


def check_profile(inputs: StatusInput) -> Iterator[CheckResult]:
    """Say where the lake, its catalog and its state are."""
    lake = inputs.config.lake
    if unsupported := lake.find_unsupported():
        message = f"{unsupported.key}: {unsupported.reason}: rows stay in the spool"
        yield check_failed("profile", message, f"hyp config set {unsupported.key} '{unsupported.default}'")
    elif shared := to_shared_lake(lake):
        yield check_ok("profile", f"shared: catalog and state in {shared.address}, data files in {shared.warehouse}")
    else:
        yield check_ok("profile", f"embedded: catalog, state and data files are in {inputs.home.root}")


def check_secrets(inputs: StatusInput) -> Iterator[CheckResult]:
    for sink, declared in inputs.config.sinks.items():
        for option, value in declared.options.items():
            name = f"secrets:{sink}"
            if not value or not isinstance(value, str):
                continue
            if option.endswith("_file"):
                yield _check_secret_file(name, Path(value).expanduser())
            elif option.endswith("_env") and inputs.environment.get(value):
                yield check_ok(name, f"{value} is set here; the daemon uses the environment it was started with")
            elif option.endswith("_env"):
                message = f"{value} is not set here; the daemon needs it in its own environment"
                yield check_warning(name, message, f"echo ${value}")


def _check_secret_file(name: str, path: Path) -> CheckResult:
    shown = shlex.quote(str(path))
    try:
        with open_regular_file(path) as file:
            status = os.fstat(file.fileno())
            is_empty = not file.read(1)
    except OSError as error:
        return check_failed(name, f"{path} cannot be read: {summarize_error(error)}", f"ls -l {shown}")
    if is_empty:
        return check_failed(name, f"{path} is empty", f"ls -l {shown}")
    if stat.S_IMODE(status.st_mode) & 0o077:
        return check_warning(name, f"other users can read {path}", f"chmod 600 {shown}")
    return check_ok(name, f"{path} exists and only you can read it")


def check_clock(inputs: StatusInput) -> Iterator[CheckResult]:
    now = inputs.now.timestamp()
    if problem := _differs_from_database(inputs):
        yield check_failed("clock", problem, "date -u")
        return
    ahead = {what: at for what, at in _recorded_times(inputs) if at > now + MAX_CLOCK_STEP_BACK}
    if not ahead:
        yield check_ok("clock", f"{inputs.now:%Y-%m-%d %H:%M:%S} UTC, and nothing in the home is later")
        return
    what, at = max(ahead.items(), key=lambda item: item[1])
    then = datetime.fromtimestamp(at, UTC)
    times = f"the clock shows {inputs.now:%Y-%m-%d %H:%M} UTC, but {what} is from {then:%Y-%m-%d %H:%M}"
    yield check_failed(
        "clock", f"{times}: the clock is wrong now, or was wrong then, and retention drops nothing", "date -u"
    )


def _differs_from_database(inputs: StatusInput) -> str | None:
    """Return a message if this machine and the database of a shared lake disagree about the time."""
    if (shared := find_shared_lake(inputs.home)) is None:
        return None
    with read_catalog(inputs.home) as execute:
        if execute is None:
            return None
        ((there,),) = execute("SELECT extract(epoch FROM clock_timestamp())::FLOAT8", ())
        ahead = inputs.now.timestamp() - there
    if abs(ahead) <= _CLOCK_DIFFERENCE_SECONDS:
        return None
    side = "ahead of" if ahead > 0 else "behind"
    return (
        f"the clock of {socket.gethostname()} is {abs(ahead):,.0f} s {side} that of the "
        f"database {shared.address} (lake.state): times of rows and the age of received batches are wrong"
    )


def _recorded_times(inputs: StatusInput) -> Iterator[tuple[str, float]]:
    for entry in metadata.list_tables(inputs.home):
        try:
            snapshots = metadata.read_metadata(entry.metadata).snapshots
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield from ((f"a commit of {entry.name}", snapshot.at) for snapshot in snapshots)
    if committed := text.parse_time(inputs.state.last_commit_at):
        yield "the last flush", committed.timestamp()
    for path in (inputs.home.state, inputs.home.mirror, inputs.home.config):
        if path.exists():
            yield path.name, path.stat().st_mtime
