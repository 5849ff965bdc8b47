"""The home: its identity, whether it was moved or copied, and whether its state is intact."""

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

# Every command that opens the home repairs these things first; this one changes nothing else.
_OPEN_HOME = "hyp verify"


def look(home: Home, state: Memory) -> Found[dict[str, Any]]:
    location = whereabouts(home, state)
    facts = {
        "path": str(home.root),
        "exists": home.root.is_dir(),
        "gateway_id": state.identity.gateway_id if state.identity else None,
        "incarnation": state.identity.incarnation if state.identity else None,
        "state": state.condition,
        "whereabouts": location.value if location else None,
        "file_system": file_system.kind_of(home.root) if home.root.is_dir() else None,
    }
    return Found(facts, tuple(_diagnostics(home, state, location)))


def whereabouts(home: Home, state: Memory) -> Whereabouts | None:
    """Return whether the home was moved or copied, or None if its identity is unknown."""
    if not home.root.is_dir():
        return None
    identity = state.identity or (known.identity if (known := mirror.read(home.mirror)) else None)
    return identity.locate(home.root) if identity else None


def is_set_up(home: Home) -> bool:
    """Return whether any part of a home exists."""
    return any(path.exists() for path in (home.config, home.state, home.mirror, home.spool, home.catalog))


def _diagnostics(home: Home, state: Memory, location: Whereabouts | None) -> Iterator[Diagnostic]:
    if home.root.exists() and not home.root.is_dir():
        yield error("home_no_folder", f"{home.root} is not a folder", f"ls -ld {shlex.quote(str(home.root))}")
    elif home.backup_note.is_file():
        yield error(
            "home_is_backup",
            f"{home.root} is a backup and cannot be used as a home",
            f"HYP_HOME=<a new folder> hyp restore {shlex.quote(str(home.root))}",
        )
    elif not is_set_up(home):
        yield warning("not_set_up", f"{home.root} is not set up, so nothing is recorded", "hyp setup")
    else:
        yield from _state_diagnostics(home, state)
        yield from _side_file_diagnostics(home, state)
    was = state.identity.home_path if state.identity else "another location"
    if location is Whereabouts.MOVED:
        yield warning(
            "home_moved", f"the home was moved here from {was}: the next command updates its tables", _OPEN_HOME
        )
    elif location is Whereabouts.COPIED:
        yield warning(
            "home_copied",
            f"this home is a copy of the one at {was}: the next command gives it a new identity, under which it "
            "delivers",
            _OPEN_HOME,
        )


def _state_diagnostics(home: Home, state: Memory) -> Iterator[Diagnostic]:
    if state.condition == "unreadable":
        yield error(
            "state_unreadable",
            f"the state {home.state} cannot be read ({state.error}): the next command rebuilds it from the lake",
            _OPEN_HOME,
        )
    elif state.condition == "newer":
        yield error(
            "state_too_new",
            f"the state {home.state} was written by a newer version of hypaware",
            "pip install --upgrade hypaware",
        )
    elif state.condition == "none" and (home.mirror.exists() or home.catalog.exists()):
        yield error("state_lost", f"the state {home.state} is missing: the next command rebuilds it", _OPEN_HOME)
    if home.state.with_name(f"{home.state.name}.suspect").exists():
        yield error(
            "state_suspect",
            f"a command found damage in the state {home.state}: the next command checks it, and rebuilds it if needed",
            _OPEN_HOME,
        )


def _side_file_diagnostics(home: Home, state: Memory) -> Iterator[Diagnostic]:
    """Check the derived files that a rebuild of the state would need."""
    if state.identity is None:
        return
    if mirror.read(home.mirror) is None:
        yield warning(
            "mirror_unreadable",
            f"{home.mirror}, from which a lost state is rebuilt, is missing or damaged; the next command writes it",
            _OPEN_HOME,
        )
    try:
        gateway_id = home.gateway.read_text("utf-8").strip()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as problem:
        gateway_id = reason_of(problem)
    if gateway_id != state.identity.gateway_id:
        yield warning(
            "gateway_id_differs",
            f"{home.gateway} does not hold this home's gateway id, {state.identity.gateway_id}; remove it, and the "
            "next command writes it again",
            f"rm {shlex.quote(str(home.gateway))}",
            _OPEN_HOME,
        )
