"""The one way to open a home: is it the home it was, is its state there, sound and not behind its lake?

In a home that was moved or copied nothing is read or written before that is settled; see `moving`. A lost, damaged or
outdated state is rebuilt from the lake and the side file, without Spark. Processes that open a home at the same time
wait for the one that does such a thing, and find it done.
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
from hypaware.errors import NotReady, Retryable, StateError
from hypaware.home import Home
from hypaware.state import mirror
from hypaware.state.identity import Identity, Whereabouts

if TYPE_CHECKING:
    from hypaware.state.store import Store

# All that somebody may have put into a folder before it became a home, or a command that does not open one.
_BEFORE = frozenset({"config.toml", "engine", "logs", "run", "server-token", "telemetry"})
# Damage that was only suspected, in a home that lies elsewhere: looked at, then settled.
_ATTEMPTS = 3


@dataclass(frozen=True)
class OpenHome:
    home: Home
    store: Store
    identity: Identity
    rebuilt: str | None = None
    """Why the state had to be rebuilt just now, in words for the user."""

    @property
    def gateway_id(self) -> str:
        return self.identity.gateway_id


def identify(where: Home | str | os.PathLike[str]) -> Identity:
    """Whose home this is, without opening its state where the side file knows: what a producer needs to append."""
    home = _home(where)
    held = mirror.read(home.mirror)
    if held and home.state.is_file() and held.identity.whereabouts(home.root) is Whereabouts.HERE:
        return held.identity
    opened = open_home(home)
    opened.store.close()
    return opened.identity


def open_home(where: Home | str | os.PathLike[str], *, make: bool = True) -> OpenHome:
    """Without `make`, for whoever looks in now and then: a home that was removed meanwhile is not made again."""
    from hypaware.state.store import Store

    home = _home(where)
    try:
        if home.backup_note.is_file():
            raise NotReady(
                f"{home.root} is a backup, which would not be one any more if it were used as a home",
                kind="home_is_backup",
                repair=f"HYP_HOME=<a new folder> hyp restore {shlex.quote(str(home.root))}",
            )
        if not make and not home.state.is_file():
            raise NotReady(f"the home {home.root} is gone", kind="home_gone")
        if not home.root.is_dir():
            file_system.refuse_network(home.root)
            durable.make_dir(home.root)
        store = Store(home.state)
        try:
            for _ in range(_ATTEMPTS):
                opened = _open_existing(home, store) if home.state.is_file() else None
                if opened is None and not make and not home.root.is_dir():
                    raise NotReady(f"the home {home.root} is gone", kind="home_gone")
                if opened := opened or _create(home, store):
                    return opened
            raise StateError(f"the state {home.state} of a home that lies elsewhere than it did cannot be read")
        except BaseException:
            store.close()
            raise
    except OSError as error:
        raise Retryable(f"the home {home.root} could not be opened: {error}", kind="home_unavailable") from error


def _home(where: Home | str | os.PathLike[str]) -> Home:
    return where if isinstance(where, Home) else Home(Path(where).expanduser().absolute())


def _open_existing(home: Home, store: Store) -> OpenHome | None:
    """None if there is no usable state, so that one must be made."""
    from hypaware.state import whose
    from hypaware.state.store import StateCorrupt, suspicion

    if suspicion(home.state).exists():
        return None
    settled = None
    try:
        with store.reading() as connection:
            before = whose.load(connection)
        if before is None:
            return None
        if before.whereabouts(home.root) is not Whereabouts.HERE:
            settled = _settle(home, store, before)
        store.migrate()
        held = mirror.read(home.mirror)
        known, reason = _behind(home, store, held)
    except StateCorrupt:
        return None
    if known is None:
        return None
    if reason:
        return catch_up(home, store, reason)
    if held is None or held.identity.whereabouts(home.root) is not Whereabouts.HERE:
        mirror.write(home.mirror, store)
    return OpenHome(home, store, known, rebuilt=settled)


def _settle(home: Home, store: Store, before: Identity) -> str | None:
    """A home that lies elsewhere than it did is told so, once; what happened, in words for the user."""
    from hypaware import moving
    from hypaware.state import whose

    with _exclusive(home):
        with store.reading() as connection:
            known = whose.load(connection)
        if known is None or (found := known.whereabouts(home.root)) is Whereabouts.HERE:
            return None  # another process was quicker
        file_system.refuse_network(home.root)
        moving.bring_lake(home)
        store.migrate()
        # While the state still says where it belonged: what lags in it is raised before it leaps ahead of everything.
        if _behind(home, store, mirror.read(home.mirror))[1]:
            _raise(home, store)
        with store.transaction() as connection:
            known = whose.load(connection)
            assert known is not None
            if found is Whereabouts.COPIED:
                whose.save(connection, moving.begin_anew(connection, home, known))
            else:
                whose.save(connection, known.placed(home.root))
        mirror.write(home.mirror, store)
    if found is Whereabouts.COPIED:
        return f"this home is a copy of the one at {before.home_path}, and goes on by itself"
    return f"the home was moved here from {before.home_path}"


def _behind(home: Home, store: Store, held: mirror.Mirror | None) -> tuple[Identity | None, str | None]:
    """Whose home the state says it is, and why it must be older than its lake or its side file."""
    from hypaware.lake import rebuild
    from hypaware.state import flushes, streams, whose

    # Read together: another process may be raising the state, as a new incarnation.
    with store.reading() as connection:
        known, following = whose.load(connection), flushes.next_seq(connection)
        step = streams.step(connection)
    reason = None
    if held is None:
        if rebuild.read_facts(home).floor >= following:
            reason = "the state is older than its lake: it was restored from an earlier copy"
    elif following < held.next_seq or step < held.step or not (known and known.descends_from(held.identity)):
        reason = "the state is older than its side file: it was restored from an earlier copy"
    return known, reason


def catch_up(home: Home, store: Store, reason: str) -> OpenHome:
    """A state that lags behind its lake or its side file is raised to them, as a new incarnation."""
    with _exclusive(home):
        known, raised = _raise(home, store)
    return OpenHome(home, store, known, rebuilt=reason if raised else None)


def _raise(home: Home, store: Store) -> tuple[Identity, bool]:
    """The identity, and whether anything had to be done. The home stays where the state says that it is."""
    from hypaware.lake import rebuild
    from hypaware.state import flushes, streams, whose

    facts, held = rebuild.read_facts(home), mirror.read(home.mirror)
    seen = max(facts.floor + 1, held.next_seq if held else 0)
    with store.transaction() as connection:
        known = whose.load(connection)
        assert known is not None
        forked = held is not None and not known.descends_from(held.identity)
        behind = streams.step(connection) < (held.step if held else 0)
        if flushes.next_seq(connection) >= seen and not behind and not forked:
            return known, False  # another process was quicker
        # Where the lake is ahead of the state and the side file is not, both are old.
        knows_more = held is not None and (behind or forked or held.next_seq > flushes.next_seq(connection))
        rebuild.raise_to(connection, facts, held)
        if behind or forked or not knows_more:
            rebuild.recall_deliveries(connection, facts, held if knows_more else None)
        # Of a state from an earlier life: what was sent in the lives since is asked for under their names.
        latest = rebuild.latest(held.identity if held and forked else known, facts)
        latest = latest.reborn(flushes.next_seq(connection) - 1).where(known)
        whose.save(connection, latest)
    mirror.write(home.mirror, store)
    return latest, True


def _create(home: Home, store: Store) -> OpenHome | None:
    """A new state, under a lock: two processes that meet an empty home make one. None if there is one after all, which
    must be settled first."""
    from hypaware import moving
    from hypaware.lake import rebuild
    from hypaware.state import flushes, whose
    from hypaware.state.store import is_sound, suspicion

    file_system.refuse_network(home.root)
    _close_to_others(home.root)
    with _exclusive(home):
        held = mirror.read(home.mirror)
        damaged = home.state.is_file() and not is_sound(home.state)
        if damaged:
            store.close()
            _set_aside(home.state)
        suspicion(home.state).unlink(missing_ok=True)
        # Made by us, so that SQLite's side files take its mode over.
        home.state.touch(mode=0o600)
        store.migrate()
        with store.reading() as connection:
            known, emptied = whose.load(connection), flushes.allocated(connection) is None
        if known and not emptied:
            # Another process was quicker, or nothing was wrong with it.
            here = known.whereabouts(home.root) is Whereabouts.HERE
            return OpenHome(home, store, known) if here else None
        if (found := moving.whereabouts(home, known, held)) is not Whereabouts.HERE:
            moving.bring_lake(home)
        facts = rebuild.read_facts(home)
        with store.transaction() as connection:
            rebuild.raise_to(connection, facts, held)
            rebuild.recall_deliveries(connection, facts, held)
            through = flushes.next_seq(connection) - 1
            made = (
                known.placed(home.root).reborn(through)
                if known
                else rebuild.create_identity(home, facts, held, through)
            )
            if found is Whereabouts.COPIED:
                made = moving.begin_anew(connection, home, made)
            whose.save(connection, made)
        mirror.write(home.mirror, store)
    what = "damaged" if damaged or emptied else "lost"
    lived = emptied or held or facts.tables
    return OpenHome(home, store, made, rebuilt=f"the state was {what} and has been rebuilt" if lived else None)


def _close_to_others(root: Path) -> None:
    """A folder that somebody made for the home is the owner's alone from here on. One that holds other things too may
    be open for a reason: `hyp doctor` tells."""
    about = root.stat()
    if about.st_mode & 0o077 and about.st_uid == os.geteuid() and all(each.name in _BEFORE for each in root.iterdir()):
        root.chmod(0o700)


def _set_aside(path: Path) -> None:
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
