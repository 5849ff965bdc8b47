"""What is due: each source is looked at, pinned as it is now, and held against what earlier imports took of it.

An unchanged source is not opened. One is due if it is new, has grown, was replaced, was read under a narrower window,
or if something of it was held back and it has been quiet since.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from hypaware.backfill.check import ProviderFault, checked_source
from hypaware.backfill.pinned import Pinned, Window, inode_of
from hypaware.backfill.provider import Environment, Event, Found, Provider
from hypaware.model.columns import Type, coercer, timestamp_text
from hypaware.regular import open_regular
from hypaware.state.source_mark import SourceMark

QUIET_NS = 10 * 60 * 10**9
UNREADABLE = "unreadable"
"""What a provider calls the event of a source that it could not look at."""
_MOST = 2**63 - 1
# More than any transcript has; a sparse file that claims to be larger would use up sequences.
_MAX_BYTES = 1 << 40
_HEAD_BYTES = 64 << 10
_time_text = coercer(Type.TIMESTAMP)


@dataclass(frozen=True)
class Due:
    found: Found
    pinned: Pinned
    first_time: str

    @property
    def order(self) -> tuple[str, int, str]:
        """First by time: sequence and day rise together, and of two copies of a message the original comes first."""
        return self.first_time, self.pinned.mtime_ns, str(self.pinned.path)

    @property
    def max_rows(self) -> int:
        return self.pinned.size if self.found.max_rows is None else self.found.max_rows


@dataclass
class Survey:
    due: list[Due] = field(default_factory=list)
    unchanged: int = 0
    held: int = 0
    """Messages of unchanged sources that still wait."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Reason → sources that cannot be read now; they stay due."""
    events: list[Event] = field(default_factory=list)

    @property
    def files(self) -> int:
        return len(self.due) + self.unchanged + self.skipped.total()

    @property
    def bytes(self) -> int:
        return sum(each.pinned.size for each in self.due)


def survey(
    provider: Provider,
    environment: Environment,
    marks: Mapping[str, SourceMark],
    window: Window,
    now: datetime,
    *,
    in_order: bool = True,
    looked: Callable[[int], None] = lambda _: None,
) -> Survey:
    """In the order in which the sources are to be imported; for that their first bytes are read.

    `looked` is told how many sources were looked at so far, and may stop the survey.
    """
    found = Survey()
    seen: set[tuple[int, int] | Path] = set()
    for number, source in enumerate(_found(provider, environment, found)):
        looked(number)
        try:
            status = source.path.stat()
            if not stat.S_ISREG(status.st_mode):
                found.skipped["not_a_file"] += 1
                continue
            if status.st_size > _MAX_BYTES:
                found.skipped["too_large"] += 1
                continue
            inode = (status.st_dev, status.st_ino)
            if not status.st_size or inode in seen or source.path in seen:
                continue
            seen.update((inode, source.path))
            mark = marks.get(path_text(source.path))
            pinned = _pin(source.path, status, mark, window, now)
            if pinned is None:
                found.unchanged += 1
                found.held += len(mark.held) if mark else 0
                continue
            found.due.append(Due(source, pinned, _first_time(provider, pinned) if in_order else ""))
        except FileNotFoundError:
            found.skipped["vanished"] += 1
        except (OSError, ValueError):
            # ValueError: a name that no file can have.
            found.skipped[UNREADABLE] += 1
    found.due.sort(key=lambda due: due.order)
    return found


def path_text(path: Path) -> str:
    """A path as text that can be stored and shown, whatever bytes it is made of; two paths never give one text."""
    raw = os.fsencode(path)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return f"{raw.decode('utf-8', 'backslashreplace')} [{hashlib.sha256(raw).hexdigest()[:16]}]"


def _found(provider: Provider, environment: Environment, survey: Survey) -> Iterator[Found]:
    try:
        for thing in provider.find(environment):
            source = checked_source(thing)
            if isinstance(source, Found):
                yield source
                continue
            survey.events.append(source)
            if source.name == UNREADABLE:
                survey.skipped[UNREADABLE] += 1
    except ProviderFault:
        raise
    except Exception as error:
        raise ProviderFault("provider_error", f"looking for history failed: {type(error).__name__}: {error}") from error


def _pin(path: Path, now_is: os.stat_result, mark: SourceMark | None, window: Window, now: datetime) -> Pinned | None:
    """None if it has not changed since the mark was made and nothing of it can be due."""
    mtime_ns = max(-_MOST, min(now_is.st_mtime_ns, _MOST))
    # Nobody writes in the future: such a time is a mistake, and waiting for it would take for ever.
    quiet = abs(int(now.timestamp() * 10**9) - mtime_ns) >= QUIET_NS
    fresh = Pinned(path, inode_of(now_is), now_is.st_size, mtime_ns, quiet=quiet, window=window)
    if mark is None:
        return fresh
    before = Window(mark.since, mark.until)
    unchanged = (mark.inode, mark.size, mark.mtime_ns) == (fresh.inode, fresh.size, fresh.mtime_ns)
    # Time releases what was held back because somebody was still writing; nothing else does without more bytes.
    released = mark.held and quiet and not mark.quiet
    if unchanged and before.covers(window) and not released:
        return None
    if fresh.size < mark.consumed:
        return fresh
    # Whether the bytes are still those, also under a new inode, their hash will tell.
    return replace(
        fresh,
        consumed=mark.consumed,
        prefix_hash=mark.prefix_hash,
        held=frozenset(mark.held),
        left_out=mark.left_out,
        ignored=mark.ignored,
    )


def _first_time(provider: Provider, pinned: Pinned) -> str:
    with open_regular(pinned.path) as file:
        head = file.read(_HEAD_BYTES)
    try:
        return str(_time_text(provider.first_time(head)))
    except ValueError:
        return timestamp_text(datetime.fromtimestamp(pinned.mtime_ns / 10**9, UTC))
    except Exception as error:
        message = f"finding the first time in {pinned.path} failed: {type(error).__name__}: {error}"
        raise ProviderFault("provider_error", message) from error
