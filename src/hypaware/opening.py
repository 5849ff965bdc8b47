"""The one way to open a home: is it the home it was, is its state there, sound and not behind its lake?

Nothing is read or written in a home that was moved or copied. A lost, damaged or outdated state is rebuilt from the
lake and the side file, without Spark.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware import durable
from hypaware.errors import NotReady, Retryable
from hypaware.home import Home
from hypaware.state import identity, mirror
from hypaware.state.identity import Identity

if TYPE_CHECKING:
    from hypaware.state.store import Store

_NETWORK_FILE_SYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p", "fuse.sshfs", "fuse.rclone",
    "davfs", "webdav", "afpfs", "fuse.s3fs", "beegfs", "gpfs",
}  # fmt: skip


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
    if held is None or not home.state.is_file():
        opened = open_home(home)
        opened.store.close()
        return opened.identity
    identity.check(held.identity, home.root)
    return held.identity


def open_home(where: Home | str | os.PathLike[str]) -> OpenHome:
    from hypaware.state.store import Store

    home = _home(where)
    try:
        if not home.root.is_dir():
            _refuse_network(home.root)
            durable.make_dir(home.root)
        held = mirror.read(home.mirror)
        if held:
            identity.check(held.identity, home.root)
        store = Store(home.state)
        try:
            opened = _open_existing(home, store, held) if home.state.is_file() else None
            return opened or _create(home, store, held)
        except BaseException:
            store.close()
            raise
    except OSError as error:
        raise Retryable(f"the home {home.root} could not be opened: {error}", kind="home_unavailable") from error


def _home(where: Home | str | os.PathLike[str]) -> Home:
    return where if isinstance(where, Home) else Home(Path(where).expanduser().absolute())


def _open_existing(home: Home, store: Store, held: mirror.Mirror | None) -> OpenHome | None:
    """None if there is no usable state, so that one must be made."""
    from hypaware.lake import rebuild
    from hypaware.state import flushes, streams, whose
    from hypaware.state.store import StateCorrupt, suspicion

    if suspicion(home.state).exists():
        return None
    try:
        with store.reading() as connection:
            before = whose.load(connection)
        if before is None:
            return None
        identity.check(before, home.root)
        store.migrate()
        # Read together: another process may be raising the state, as a new incarnation.
        with store.reading() as connection:
            known, following = whose.load(connection), flushes.next_seq(connection)
            step = streams.step(connection)
    except StateCorrupt:
        return None
    if known is None:
        return None
    if held is None:
        if rebuild.read_facts(home).floor >= following:
            return catch_up(home, store, "the state is older than its lake: it was restored from an earlier copy")
        mirror.write(home.mirror, store)
    elif following < held.next_seq or step < held.step or not known.descends_from(held.identity):
        return catch_up(home, store, "the state is older than its side file: it was restored from an earlier copy")
    return OpenHome(home, store, known)


def catch_up(home: Home, store: Store, reason: str) -> OpenHome:
    """A state that lags behind its lake or its side file is raised to them, as a new incarnation."""
    from hypaware.lake import rebuild
    from hypaware.state import flushes, streams, whose

    with _exclusive(home):
        facts, held = rebuild.read_facts(home), mirror.read(home.mirror)
        seen = max(facts.floor + 1, held.next_seq if held else 0)
        with store.transaction() as connection:
            known = whose.load(connection)
            assert known is not None
            forked = held is not None and not known.descends_from(held.identity)
            behind = streams.step(connection) < (held.step if held else 0)
            if flushes.next_seq(connection) >= seen and not behind and not forked:
                return OpenHome(home, store, known)  # another process was quicker
            # Where the lake is ahead of the state and the side file is not, both are old.
            knows_more = held is not None and (behind or forked or held.next_seq > flushes.next_seq(connection))
            rebuild.raise_to(connection, facts, held)
            if behind or forked or not knows_more:
                rebuild.recall_deliveries(connection, facts, held if knows_more else None)
            # Of a state from an earlier life: what was sent in the lives since is asked for under their names.
            known = rebuild.latest(held.identity if held and forked else known, facts)
            known = known.reborn(flushes.next_seq(connection) - 1)
            whose.save(connection, known)
        mirror.write(home.mirror, store)
    return OpenHome(home, store, known, rebuilt=reason)


def _create(home: Home, store: Store, held: mirror.Mirror | None) -> OpenHome:
    """A new state, under a lock: two processes that meet an empty home make one."""
    from hypaware.lake import rebuild
    from hypaware.state import flushes, whose
    from hypaware.state.store import is_sound, suspicion

    _refuse_network(home.root)
    with _exclusive(home):
        damaged = home.state.is_file() and not is_sound(home.state)
        if damaged:
            store.close()
            _set_aside(home.state)
        suspicion(home.state).unlink(missing_ok=True)
        # Made by us, so that SQLite's side files take its mode over.
        home.state.touch(mode=0o600)
        store.migrate()
        facts = rebuild.read_facts(home)
        with store.transaction() as connection:
            known, emptied = whose.load(connection), flushes.allocated(connection) is None
            if known and not emptied:
                identity.check(known, home.root)
                return OpenHome(home, store, known)  # another process was quicker
            rebuild.raise_to(connection, facts, held)
            rebuild.recall_deliveries(connection, facts, held)
            through = flushes.next_seq(connection) - 1
            known = known.reborn(through) if known else rebuild.create_identity(home, facts, held, through)
            identity.check(known, home.root)
            whose.save(connection, known)
        mirror.write(home.mirror, store)
    what = "damaged" if damaged or emptied else "lost"
    lived = emptied or held or facts.tables
    return OpenHome(home, store, known, rebuilt=f"the state was {what} and has been rebuilt" if lived else None)


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


def _refuse_network(root: Path) -> None:
    if (kind := _file_system(root)) in _NETWORK_FILE_SYSTEMS:
        raise NotReady(
            f"{root} lies on a network file system ({kind}), where locks and syncs cannot be trusted",
            kind="network_file_system",
            repair="export HYP_HOME=<a folder on a local disk>",
        )


def _file_system(path: Path) -> str | None:
    """The type of the mount that holds the path; None where the platform does not tell."""
    mounts = Path("/proc/self/mounts")
    if sys.platform != "linux" or not mounts.is_file():
        return None
    best, kind = "", None
    for line in mounts.read_text().splitlines():
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if path.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, found
    return kind
