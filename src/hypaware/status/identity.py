"""The home itself: whose it is, whether it is the one that it was, and whether its memory is sound."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from hypaware import file_system
from hypaware.home import Home
from hypaware.state import mirror
from hypaware.state.identity import Whereabouts
from hypaware.status.diagnostic import Diagnostic, Found, error, reason_of, warning
from hypaware.status.memory import Memory

# Any command that opens a home settles these things first; this one changes nothing else.
_SETTLE = "hyp verify"


def look(home: Home, memory: Memory) -> Found[dict[str, Any]]:
    place = whereabouts(home, memory)
    facts = {
        "path": str(home.root),
        "exists": home.root.is_dir(),
        "gateway_id": memory.identity.gateway_id if memory.identity else None,
        "incarnation": memory.identity.incarnation if memory.identity else None,
        "state": memory.state,
        "whereabouts": place.value if place else None,
        "file_system": file_system.kind_of(home.root) if home.root.is_dir() else None,
    }
    return Found(facts, tuple(_diagnostics(home, memory, place)))


def whereabouts(home: Home, memory: Memory) -> Whereabouts | None:
    """None where nothing knows."""
    if not home.root.is_dir():
        return None
    held = memory.identity or (known.identity if (known := mirror.read(home.mirror)) else None)
    return held.whereabouts(home.root) if held else None


def is_set_up(home: Home) -> bool:
    """Whether anything of a home is there."""
    return any(path.exists() for path in (home.config, home.state, home.mirror, home.spool, home.catalog))


def _diagnostics(home: Home, memory: Memory, place: Whereabouts | None) -> Iterator[Diagnostic]:
    if home.root.exists() and not home.root.is_dir():
        yield error("home_no_folder", f"{home.root} is not a folder", f"ls -ld {shlex.quote(str(home.root))}")
    elif home.backup_note.is_file():
        yield error(
            "home_is_backup",
            f"{home.root} is a backup, and a backup is not used as a home",
            f"HYP_HOME=<a new folder> hyp restore {shlex.quote(str(home.root))}",
        )
    elif not is_set_up(home):
        yield warning("not_set_up", f"nothing is set up yet in {home.root}, so nothing is recorded", "hyp setup")
    else:
        yield from _of_state(home, memory)
        yield from _of_side_files(home, memory)
    was = memory.identity.home_path if memory.identity else "another place"
    if place is Whereabouts.MOVED:
        yield warning(
            "home_moved", f"the home was moved here from {was}: the next command tells its tables so", _SETTLE
        )
    elif place is Whereabouts.COPIED:
        yield warning(
            "home_copied",
            f"this home is a copy of the one at {was}: the next command makes it one of its own, "
            "which delivers under a new name",
            _SETTLE,
        )


def _of_state(home: Home, memory: Memory) -> Iterator[Diagnostic]:
    if memory.state == "unreadable":
        yield error(
            "state_unreadable",
            f"the state {home.state} cannot be read ({memory.trouble}): the next command rebuilds it from the lake",
            _SETTLE,
        )
    elif memory.state == "newer":
        yield error(
            "state_too_new",
            f"the state {home.state} was written by a newer version of hypaware",
            "pip install --upgrade hypaware",
        )
    elif memory.state == "none" and (home.mirror.exists() or home.catalog.exists()):
        yield error("state_lost", f"the state {home.state} is gone: the next command rebuilds it", _SETTLE)
    if home.state.with_name(f"{home.state.name}.suspect").exists():
        yield error(
            "state_suspect",
            f"somebody met damage in the state {home.state}: the next command checks all of it, and rebuilds it if so",
            _SETTLE,
        )


def _of_side_files(home: Home, memory: Memory) -> Iterator[Diagnostic]:
    """What is derived, and would be missed when the state is lost."""
    if memory.identity is None:
        return
    if mirror.read(home.mirror) is None:
        yield warning(
            "mirror_unreadable",
            f"{home.mirror}, which must outlive the state, is missing or damaged; the next command writes it",
            _SETTLE,
        )
    try:
        noted = home.gateway.read_text("utf-8").strip()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as trouble:
        noted = reason_of(trouble)
    if noted != memory.identity.gateway_id:
        yield warning(
            "gateway_id_differs",
            f"{home.gateway} does not name this home's gateway, {memory.identity.gateway_id}; it is written anew",
            f"rm {shlex.quote(str(home.gateway))}",
            _SETTLE,
        )
