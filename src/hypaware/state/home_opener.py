"""Opens a home, after checking that it was not moved and that its state exists, is intact and is not stale.

A moved or copied home is relocated before anything else in it is read or written: its tables are rewritten to name
their files at the new path. A copy also becomes a new incarnation, which skips the sequences that the original will
allocate from now on. The original may deliver rows that the copy has not delivered, so those streams ask their
destination, or wait for the user. The order is lake, state, mirror. If the process is killed in between, the state
still names the old path, and the relocation runs again.

A lost, damaged or stale state is rebuilt from the lake and the mirror, without Spark. One process does this work while
others wait. Producers call `read_identity`, so the database and Iceberg are imported only when they are needed.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware.errors import NotReady, Retryable, StateCorrupt, StateError
from hypaware.home import Home, durable_files, locks
from hypaware.home.identity import HomeLocation, Identity
from hypaware.state import flushes, streams
from hypaware.state.inherited_segments import record_inherited
from hypaware.state.location import has_state, open_store
from hypaware.state.mirror import Mirror, mark_unknown, read_mirror, shared_mirror, write_mirror
from hypaware.state.streams import Stream

if TYPE_CHECKING:
    from hypaware.state.store import Connection, StateStore

# Far more than a home allocates in its lifetime; a chain of four million copies still fits.
SKIPPED_SEQUENCES = 2**40
# Files that can exist in a folder before it becomes a home.
_ALLOWED_BEFORE = frozenset({"config.toml", "engine", "logs", "run", "server-token", "telemetry"})
# A state that was suspected to be damaged, in a moved home, takes two attempts: check it, then relocate it.
_ATTEMPTS = 3


@dataclass(frozen=True)
class OpenHome:
    home: Home
    store: StateStore
    identity: Identity
    rebuilt: str | None = None
    """Why the state was rebuilt or relocated by this call, as a message for the user."""

    @property
    def gateway_id(self) -> str:
        return self.identity.gateway_id

    @property
    def gateway_of_rows(self) -> str:
        return self.identity.gateway_of_rows(self.home.root)


def read_identity(home: Home, *, make: bool = True) -> Identity:
    """Return the identity of a home, which a producer needs. Open the state only if the mirror is unusable.

    With `make=False`, raise NotReady if there is no home: a command that reads must not create one at a mistyped path.
    """
    if not make and not home.root.is_dir():
        raise NotReady(f"no home at {home.root}", kind="no_home", repair="hyp setup")
    held = read_mirror(home.mirror)
    if held and has_state(home) and held.identity.locate(home.root) is HomeLocation.HERE:
        return held.identity
    opened = _open_home(home, may_make_root=make, needs_state=False)
    opened.store.close()
    return opened.identity


def open_home(home: Home, *, make: bool = True) -> OpenHome:
    """Open a home, creating it if necessary. With `make=False`, raise NotReady if the home was removed."""
    return _open_home(home, may_make_root=make, needs_state=not make)


def _open_home(home: Home, *, may_make_root: bool, needs_state: bool) -> OpenHome:
    """Open a home. It may be removed at any time: only the check of its folder creates the folder, nothing after it."""
    from hypaware.config.shared_lake import find_shared_lake

    try:
        if home.backup_note.is_file():
            raise NotReady(
                f"{home.root} is a backup and cannot be used as a home",
                kind="home_is_backup",
                repair=f"HYP_HOME=<a new folder> hyp restore {shlex.quote(str(home.root))}",
            )
        if needs_state and not has_state(home):
            raise _removed(home)
        if not home.root.is_dir():
            if not may_make_root:
                raise _removed(home)
            durable_files.reject_network_file_system(home.root)
            durable_files.make_dir(home.root)
        store = open_store(home)
        try:
            if find_shared_lake(home) is not None:
                return _open_shared(home, store)
            _reject_shared_mirror(home)
            for _ in range(_ATTEMPTS):
                opened = _open_existing(home, store) if home.state.is_file() else None
                if opened is None and needs_state and not has_state(home):
                    raise _removed(home)
                if opened := opened or _create(home, store):
                    return opened
            raise StateError(f"the state {home.state} of a moved home cannot be read")
        except BaseException:
            store.close()
            raise
    except OSError as error:
        raise Retryable(f"the home {home.root} could not be opened: {error}", kind="home_unavailable") from error


def _open_shared(home: Home, store: StateStore) -> OpenHome:
    """Open the state of a shared lake, creating it if necessary. The transactions of other machines are serialized."""
    from hypaware.state import recovery
    from hypaware.state.store import load_identity, save_identity

    if home.state.is_file() or home.catalog.is_file():
        raise NotReady(
            f"the home {home.root} has a lake of its own, which a shared lake (lake.catalog) would hide",
            kind="home_has_lake",
            repair="export HYP_HOME=<a new folder>",
        )
    _make_run_folder(home)
    held = read_mirror(home.mirror)
    store.migrate()
    with store.reading() as connection:
        known = load_identity(connection)
    if known is None:
        lake = recovery.summarize_lake(home)
        with store.transaction() as connection:
            known = load_identity(connection)
            if known is None:
                recovery.raise_state_to(connection, lake, held)
                recovery.recover_deliveries(connection, lake, held)
                through = flushes.next_sequence(connection) - 1
                known = recovery.derive_identity(home, lake, held, through).as_shared()
                save_identity(connection, known)
    if held is not None and held.identity.gateway_id != known.gateway_id:
        raise NotReady(
            f"the home {home.root} was used with another lake than {store.database} (lake.state)",
            kind="other_lake",
            repair="export HYP_HOME=<a new folder>",
        )
    if (reason := _check_stale(home, store, held)[1]) is not None:
        return catch_up(home, store, reason)
    if held is None or held.identity != known:
        _restrict_permissions(home.root)
        if held is not None:
            # The database was restored from an earlier copy: this machine's index may have keys of rows that are gone.
            for suffix in ("", "-wal", "-shm"):
                home.keys.with_name(home.keys.name + suffix).unlink(missing_ok=True)
        write_mirror(home.mirror, store)
    return OpenHome(home, store, known)


def take_shared_mirror(home: Home) -> None:
    """Take over the mirror in the bucket of a shared lake if the state is older than it. Call before `open_home`.

    Then the database was restored from an earlier copy, and this machine may not have seen the later one.
    """
    from hypaware.state.store import load_identity

    if (shared := shared_mirror(home)) is None or (held := read_mirror(shared)) is None:
        return
    with closing(open_store(home)) as store:
        store.migrate()
        with store.reading() as connection:
            if (known := load_identity(connection)) is None or known.gateway_id != held.identity.gateway_id:
                return
        if _check_stale(home, store, held)[1] is not None:
            durable_files.write_atomic(home.mirror, shared.read_bytes())


def _reject_shared_mirror(home: Home) -> None:
    if not home.state.is_file() and (held := read_mirror(home.mirror)) is not None and held.identity.is_shared:
        raise NotReady(
            f"the home {home.root} belongs to a shared lake, but lake.state is not set any more",
            kind="other_lake",
            repair="hyp config show lake",
        )


def _open_existing(home: Home, store: StateStore) -> OpenHome | None:
    """Return the open home, or None if its state is unusable and must be created."""
    from hypaware.state.sqlite_database import suspect_marker
    from hypaware.state.store import load_identity

    if suspect_marker(home.state).exists():
        return None
    relocated = None
    try:
        with store.reading() as connection:
            before = load_identity(connection)
        if before is None:
            return None
        if before.locate(home.root) is not HomeLocation.HERE:
            relocated = _relocate(home, store, before)
        store.migrate()
        held = read_mirror(home.mirror)
        known, reason = _check_stale(home, store, held)
    except StateCorrupt:
        return None
    if known is None:
        return None
    if reason:
        return catch_up(home, store, reason)
    if held is None or held.identity.locate(home.root) is not HomeLocation.HERE:
        write_mirror(home.mirror, store)
    return OpenHome(home, store, known, rebuilt=relocated)


def _relocate(home: Home, store: StateStore, before: Identity) -> str | None:
    """Relocate a moved or copied home once, and return a message for the user."""
    from hypaware.state.store import load_identity, save_identity

    with _home_lock(home):
        with store.reading() as connection:
            known = load_identity(connection)
        if known is None or (location := known.locate(home.root)) is HomeLocation.HERE:
            return None  # another process has done it
        durable_files.reject_network_file_system(home.root)
        _relocate_lake(home)
        store.migrate()
        # Catch up while the state still names the old path, before the sequences are skipped.
        if _check_stale(home, store, read_mirror(home.mirror))[1]:
            _catch_up(home, store)
        with store.transaction() as connection:
            known = load_identity(connection)
            assert known is not None
            if location is HomeLocation.COPIED:
                save_identity(connection, _fork_identity(connection, home, known))
            else:
                save_identity(connection, known.at(home.root))
        write_mirror(home.mirror, store)
    if location is HomeLocation.COPIED:
        return f"this home is a copy of {before.home_path} and is independent of it from now on"
    return f"the home was moved here from {before.home_path}"


def _relocate_lake(home: Home) -> None:
    from hypaware.iceberg import relocate

    locks.wait_until_stopped(home)
    relocate.rewrite_lake_paths(home)


def _fork_identity(connection: Connection, home: Home, known: Identity) -> Identity:
    """Give a copy its own incarnation, in the state and in the lake, so that losing either keeps the skipped range."""
    from hypaware.iceberg import relocate
    from hypaware.iceberg.metadata import FLOOR_PROPERTY, FORKS_PROPERTY, INCARNATION_PROPERTY, PARENTS_PROPERTY

    identity = known.at(home.root).next_incarnation(flushes.next_sequence(connection) - 1)
    flushes.skip_sequences(connection, SKIPPED_SEQUENCES)
    mark_unknown(connection, _list_undelivered(connection))
    record_inherited(connection, home, identity.forks[-1])
    relocate.set_table_properties(
        home,
        {
            FLOOR_PROPERTY: str(flushes.next_sequence(connection) - 1),
            INCARNATION_PROPERTY: identity.incarnation,
            PARENTS_PROPERTY: ",".join(identity.parents),
            FORKS_PROPERTY: ",".join(map(str, identity.forks)),
        },
    )
    return identity


def fork_rolled_back(home: Home, store: StateStore, seen: Identity, change: Callable[[Connection], None]) -> Identity:
    """Make a home that was rolled back in place a new incarnation, and return it.

    Sequences that were allocated before the rollback are skipped, and every stream is marked. `change` runs in the same
    transaction. If the incarnation is not the one `seen` any more, another stream has done all this. The caller writes
    the mirror.
    """
    from hypaware.state.store import load_identity, save_identity

    with _home_lock(home), store.transaction() as connection:
        known = load_identity(connection)
        assert known is not None
        change(connection)
        if known.incarnation == seen.incarnation:
            known = known.next_incarnation(flushes.next_sequence(connection) - 1)
            flushes.skip_sequences(connection, SKIPPED_SEQUENCES)
            streams.mark_rolled_back(connection)
            save_identity(connection, known)
    return known


def _list_undelivered(connection: Connection) -> Iterator[Stream]:
    """Return every stream, except for those that have delivered everything."""
    high_water = flushes.load_high_water(connection)
    # Rows of these flushes may be in the lake already, from any source, and both homes will record them.
    uncertain = {flush.dataset for flush in flushes.unfinished_flushes(connection)}
    planned = streams.streams_with_intent(connection)
    for stream in streams.list_streams(connection):
        reached = high_water.get(stream.key.dataset, {}).get(stream.key.source, 0)
        behind = stream.watermark is None or stream.watermark < reached
        if behind or stream.key in planned or stream.key.dataset in uncertain:
            yield stream


def _check_stale(home: Home, store: StateStore, held: Mirror | None) -> tuple[Identity | None, str | None]:
    """Return the identity in the state, and the reason if the state is older than its lake or its mirror."""
    from hypaware.state.recovery import summarize_lake
    from hypaware.state.store import load_identity

    # One transaction: another process may be catching the state up, as a new incarnation.
    with store.reading() as connection:
        known, next_sequence = load_identity(connection), flushes.next_sequence(connection)
        step = streams.delivery_step(connection)
    reason = None
    if held is None:
        if summarize_lake(home).floor >= next_sequence:
            reason = "the state is older than its lake; it was restored from an earlier copy"
    elif next_sequence < held.next_seq or step < held.step or not (known and known.descends_from(held.identity)):
        reason = "the state is older than its mirror; it was restored from an earlier copy"
    return known, reason


def catch_up(home: Home, store: StateStore, reason: str) -> OpenHome:
    """Bring a stale state up to its lake and its mirror, as a new incarnation."""
    with _home_lock(home):
        known, changed = _catch_up(home, store)
    return OpenHome(home, store, known, rebuilt=reason if changed else None)


def _catch_up(home: Home, store: StateStore) -> tuple[Identity, bool]:
    """Return the identity, and whether the state was changed. The path in the state stays the same."""
    from hypaware.state import recovery
    from hypaware.state.store import load_identity, save_identity

    lake, held = recovery.summarize_lake(home), read_mirror(home.mirror)
    expected = max(lake.floor + 1, held.next_seq if held else 0)
    with store.transaction() as connection:
        known = load_identity(connection)
        assert known is not None
        forked = held is not None and not known.descends_from(held.identity)
        behind = streams.delivery_step(connection) < (held.step if held else 0)
        if flushes.next_sequence(connection) >= expected and not behind and not forked:
            return known, False  # another process has done it
        # If the lake is ahead of the state and the mirror is not, the mirror is stale too.
        mirror_is_newer = held is not None and (behind or forked or held.next_seq > flushes.next_sequence(connection))
        recovery.raise_state_to(connection, lake, held)
        if behind or forked or not mirror_is_newer:
            recovery.recover_deliveries(connection, lake, held if mirror_is_newer else None)
        # If the state is of an earlier incarnation, rows sent since then are known under the later incarnations.
        latest = recovery.latest_identity(held.identity if held and forked else known, lake)
        latest = latest.next_incarnation(flushes.next_sequence(connection) - 1).at_location_of(known)
        save_identity(connection, latest)
    write_mirror(home.mirror, store)
    return latest, True


def _create(home: Home, store: StateStore) -> OpenHome | None:
    """Create the state, under a lock, so that concurrent processes create it only once.

    Return None if there is a state after all, which must be relocated first.
    """
    from hypaware.state import recovery
    from hypaware.state.sqlite_database import is_intact, suspect_marker
    from hypaware.state.store import load_identity, save_identity

    durable_files.reject_network_file_system(home.root)
    _restrict_permissions(home.root)
    with _home_lock(home):
        held = read_mirror(home.mirror)
        damaged = home.state.is_file() and not is_intact(home.state)
        if damaged:
            store.close()
            _quarantine(home.state)
        suspect_marker(home.state).unlink(missing_ok=True)
        # Created here, so that SQLite's side files get the same mode.
        home.state.touch(mode=0o600)
        store.migrate()
        with store.reading() as connection:
            known, emptied = load_identity(connection), flushes.next_sequence_or_none(connection) is None
        if known and not emptied:
            # Another process has done it, or the state was intact.
            here = known.locate(home.root) is HomeLocation.HERE
            return OpenHome(home, store, known) if here else None
        if (location := _locate(home, known, held)) is not HomeLocation.HERE:
            _relocate_lake(home)
        lake = recovery.summarize_lake(home)
        with store.transaction() as connection:
            recovery.raise_state_to(connection, lake, held)
            recovery.recover_deliveries(connection, lake, held)
            through = flushes.next_sequence(connection) - 1
            if known:
                identity = known.at(home.root).next_incarnation(through)
            else:
                identity = recovery.derive_identity(home, lake, held, through)
            if location is HomeLocation.COPIED:
                identity = _fork_identity(connection, home, identity)
            save_identity(connection, identity)
        write_mirror(home.mirror, store)
    problem = "damaged" if damaged or emptied else "lost"
    existed = emptied or held or lake.tables
    return OpenHome(home, store, identity, rebuilt=f"the state was {problem} and has been rebuilt" if existed else None)


def _locate(home: Home, known: Identity | None, held: Mirror | None) -> HomeLocation:
    """Determine whether the home was moved or copied, from the state, or else from its mirror.

    Without either, only the catalog can show it. A move then counts as a copy.
    """
    from hypaware.iceberg import relocate

    if identity := known or (held.identity if held else None):
        return identity.locate(home.root)
    return HomeLocation.COPIED if relocate.lake_names_other_home(home) else HomeLocation.HERE


def _restrict_permissions(root: Path) -> None:
    """Make the folder private to its owner, unless it holds other files. `hyp doctor` reports such a folder."""
    status = root.stat()
    is_exposed = status.st_mode & 0o077 and status.st_uid == os.geteuid()
    if is_exposed and all(entry.name in _ALLOWED_BEFORE for entry in root.iterdir()):
        root.chmod(0o700)


def _quarantine(path: Path) -> None:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for suffix in ("", "-wal", "-shm"):
        damaged = path.with_name(path.name + suffix)
        if damaged.exists():
            damaged.rename(path.with_name(f"{path.name}.damaged-{stamp}{suffix}"))
    durable_files.fsync_dir(path.parent)


@contextmanager
def _home_lock(home: Home) -> Iterator[None]:
    _make_run_folder(home)
    with locks.locked(home.run / "home.lock"):
        yield


def _make_run_folder(home: Home) -> None:
    """Create it in the home, but not the home itself, which may have been removed in the meantime."""
    with suppress(FileExistsError):
        home.run.mkdir(mode=0o700)
        durable_files.fsync_dir(home.root)


def _removed(home: Home) -> NotReady:
    return NotReady(f"the home {home.root} does not exist any more", kind="home_gone")
