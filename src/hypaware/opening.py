"""Opens a home, after checking that it was not moved and that its state exists, is intact and is not stale.

A moved or copied home is relocated before anything else in it is read or written; see `moving`. A lost, damaged or
stale state is rebuilt from the lake and the mirror, without Spark. If several processes open a home at the same time,
one of them does this work while the others wait.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware import durable, file_system
from hypaware.errors import NotReady, Retryable, StateCorrupt, StateError
from hypaware.home import Home
from hypaware.state import mirror
from hypaware.state.identity import Identity, Whereabouts

if TYPE_CHECKING:
    from hypaware.state.store import Store

# Files that can exist in a folder before it becomes a home.
_ALLOWED_BEFORE = frozenset({"config.toml", "engine", "logs", "run", "server-token", "telemetry"})
# A state that was suspected to be damaged, in a moved home, takes two attempts: check it, then relocate it.
_ATTEMPTS = 3


@dataclass(frozen=True)
class OpenHome:
    home: Home
    store: Store
    identity: Identity
    rebuilt: str | None = None
    """Why the state was rebuilt or relocated by this call, as a message for the user."""

    @property
    def gateway_id(self) -> str:
        return self.identity.gateway_id


def identify(where: Home | str | os.PathLike[str]) -> Identity:
    """Return the identity of a home, which a producer needs. Open the state only if the mirror is unusable."""
    home = _home(where)
    held = mirror.read(home.mirror)
    if held and home.state.is_file() and held.identity.locate(home.root) is Whereabouts.HERE:
        return held.identity
    opened = open_home(home)
    opened.store.close()
    return opened.identity


def open_home(where: Home | str | os.PathLike[str], *, make: bool = True) -> OpenHome:
    """Open a home, creating it if necessary. With `make=False`, raise NotReady if the home was removed."""
    from hypaware.state.store import Store

    home = _home(where)
    try:
        if home.backup_note.is_file():
            raise NotReady(
                f"{home.root} is a backup and cannot be used as a home",
                kind="home_is_backup",
                repair=f"HYP_HOME=<a new folder> hyp restore {shlex.quote(str(home.root))}",
            )
        if not make and not home.state.is_file():
            raise NotReady(f"the home {home.root} does not exist any more", kind="home_gone")
        if not home.root.is_dir():
            file_system.refuse_network(home.root)
            durable.make_dir(home.root)
        store = Store(home.state)
        try:
            for _ in range(_ATTEMPTS):
                opened = _open_existing(home, store) if home.state.is_file() else None
                if opened is None and not make and not home.root.is_dir():
                    raise NotReady(f"the home {home.root} does not exist any more", kind="home_gone")
                if opened := opened or _create(home, store):
                    return opened
            raise StateError(f"the state {home.state} of a moved home cannot be read")
        except BaseException:
            store.close()
            raise
    except OSError as error:
        raise Retryable(f"the home {home.root} could not be opened: {error}", kind="home_unavailable") from error


def _home(where: Home | str | os.PathLike[str]) -> Home:
    return where if isinstance(where, Home) else Home(Path(where).expanduser().absolute())


def _open_existing(home: Home, store: Store) -> OpenHome | None:
    """Return the open home, or None if its state is unusable and must be created."""
    from hypaware.state import whose
    from hypaware.state.store import suspicion

    if suspicion(home.state).exists():
        return None
    relocated = None
    try:
        with store.reading() as connection:
            before = whose.load(connection)
        if before is None:
            return None
        if before.locate(home.root) is not Whereabouts.HERE:
            relocated = _relocate(home, store, before)
        store.migrate()
        held = mirror.read(home.mirror)
        known, reason = _check_stale(home, store, held)
    except StateCorrupt:
        return None
    if known is None:
        return None
    if reason:
        return catch_up(home, store, reason)
    if held is None or held.identity.locate(home.root) is not Whereabouts.HERE:
        mirror.write(home.mirror, store)
    return OpenHome(home, store, known, rebuilt=relocated)


def _relocate(home: Home, store: Store, before: Identity) -> str | None:
    """Relocate a moved or copied home once, and return a message for the user."""
    from hypaware import moving
    from hypaware.state import whose

    with _exclusive(home):
        with store.reading() as connection:
            known = whose.load(connection)
        if known is None or (found := known.locate(home.root)) is Whereabouts.HERE:
            return None  # another process has done it
        file_system.refuse_network(home.root)
        moving.bring_lake(home)
        store.migrate()
        # Catch up while the state still names the old path, before the sequences are skipped.
        if _check_stale(home, store, mirror.read(home.mirror))[1]:
            _catch_up(home, store)
        with store.transaction() as connection:
            known = whose.load(connection)
            assert known is not None
            if found is Whereabouts.COPIED:
                whose.save(connection, moving.begin_anew(connection, home, known))
            else:
                whose.save(connection, known.at(home.root))
        mirror.write(home.mirror, store)
    if found is Whereabouts.COPIED:
        return f"this home is a copy of {before.home_path} and is independent of it from now on"
    return f"the home was moved here from {before.home_path}"


def _check_stale(home: Home, store: Store, held: mirror.Mirror | None) -> tuple[Identity | None, str | None]:
    """Return the identity in the state, and the reason if the state is older than its lake or its mirror."""
    from hypaware.lake import rebuild
    from hypaware.state import flushes, streams, whose

    # One transaction: another process may be catching the state up, as a new incarnation.
    with store.reading() as connection:
        known, following = whose.load(connection), flushes.next_seq(connection)
        step = streams.step(connection)
    reason = None
    if held is None:
        if rebuild.read_facts(home).floor >= following:
            reason = "the state is older than its lake; it was restored from an earlier copy"
    elif following < held.next_seq or step < held.step or not (known and known.descends_from(held.identity)):
        reason = "the state is older than its mirror; it was restored from an earlier copy"
    return known, reason


def catch_up(home: Home, store: Store, reason: str) -> OpenHome:
    """Bring a stale state up to its lake and its mirror, as a new incarnation."""
    with _exclusive(home):
        known, changed = _catch_up(home, store)
    return OpenHome(home, store, known, rebuilt=reason if changed else None)


def _catch_up(home: Home, store: Store) -> tuple[Identity, bool]:
    """Return the identity, and whether the state was changed. The path in the state stays the same."""
    from hypaware.lake import rebuild
    from hypaware.state import flushes, streams, whose

    facts, held = rebuild.read_facts(home), mirror.read(home.mirror)
    expected = max(facts.floor + 1, held.next_seq if held else 0)
    with store.transaction() as connection:
        known = whose.load(connection)
        assert known is not None
        forked = held is not None and not known.descends_from(held.identity)
        behind = streams.step(connection) < (held.step if held else 0)
        if flushes.next_seq(connection) >= expected and not behind and not forked:
            return known, False  # another process has done it
        # If the lake is ahead of the state and the mirror is not, the mirror is stale too.
        knows_more = held is not None and (behind or forked or held.next_seq > flushes.next_seq(connection))
        rebuild.raise_to(connection, facts, held)
        if behind or forked or not knows_more:
            rebuild.recall_deliveries(connection, facts, held if knows_more else None)
        # If the state is of an earlier incarnation, rows sent since then are known under the later incarnations.
        latest = rebuild.latest(held.identity if held and forked else known, facts)
        latest = latest.next_incarnation(flushes.next_seq(connection) - 1).at_location_of(known)
        whose.save(connection, latest)
    mirror.write(home.mirror, store)
    return latest, True


def _create(home: Home, store: Store) -> OpenHome | None:
    """Create the state, under a lock, so that concurrent processes create it only once.

    Return None if there is a state after all, which must be relocated first.
    """
    from hypaware import moving
    from hypaware.lake import rebuild
    from hypaware.state import flushes, whose
    from hypaware.state.store import is_sound, suspicion

    file_system.refuse_network(home.root)
    _restrict_permissions(home.root)
    with _exclusive(home):
        held = mirror.read(home.mirror)
        damaged = home.state.is_file() and not is_sound(home.state)
        if damaged:
            store.close()
            _quarantine(home.state)
        suspicion(home.state).unlink(missing_ok=True)
        # Created here, so that SQLite's side files get the same mode.
        home.state.touch(mode=0o600)
        store.migrate()
        with store.reading() as connection:
            known, emptied = whose.load(connection), flushes.allocated(connection) is None
        if known and not emptied:
            # Another process has done it, or the state was intact.
            here = known.locate(home.root) is Whereabouts.HERE
            return OpenHome(home, store, known) if here else None
        if (found := moving.whereabouts(home, known, held)) is not Whereabouts.HERE:
            moving.bring_lake(home)
        facts = rebuild.read_facts(home)
        with store.transaction() as connection:
            rebuild.raise_to(connection, facts, held)
            rebuild.recall_deliveries(connection, facts, held)
            through = flushes.next_seq(connection) - 1
            made = (
                known.at(home.root).next_incarnation(through)
                if known
                else rebuild.create_identity(home, facts, held, through)
            )
            if found is Whereabouts.COPIED:
                made = moving.begin_anew(connection, home, made)
            whose.save(connection, made)
        mirror.write(home.mirror, store)
    problem = "damaged" if damaged or emptied else "lost"
    existed = emptied or held or facts.tables
    return OpenHome(home, store, made, rebuilt=f"the state was {problem} and has been rebuilt" if existed else None)


def _restrict_permissions(root: Path) -> None:
    """Make the folder private to its owner, unless it holds other files. `hyp doctor` reports such a folder."""
    status = root.stat()
    if (
        status.st_mode & 0o077
        and status.st_uid == os.geteuid()
        and all(entry.name in _ALLOWED_BEFORE for entry in root.iterdir())
    ):
        root.chmod(0o700)


def _quarantine(path: Path) -> None:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for suffix in ("", "-wal", "-shm"):
        damaged = path.with_name(path.name + suffix)
        if damaged.exists():
            damaged.rename(path.with_name(f"{path.name}.damaged-{stamp}{suffix}"))
    durable.fsync_dir(path.parent)


@contextmanager
def _exclusive(home: Home) -> Iterator[None]:
    durable.make_dir(home.run)
    fd = os.open(home.run / "home.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
