"""What `hyp daemon` prints of a daemon that runs, or does not, and of its installation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hypaware.cli import output
from hypaware.cli.failure import PartlyFailed
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.daemon.installing import Installed, Plan


def as_json(service: Installed | None) -> dict[str, Any] | None:
    if service is None:
        return None
    return {
        "kind": service.kind,
        "name": service.name,
        "path": service.path,
        "command": service.command,
        "is_current": service.is_current,
    }


def show_stopped(home: Home, *, stopped: bool, as_document: bool) -> None:
    from hypaware.engine import client
    from hypaware.status import spool, words

    left = spool.waiting(home)
    if as_document:
        output.emit_json({"stopped": stopped, "spool": {"rows": left.rows, "segments": left.segments}})
        return
    output.emit("the daemon was stopped" if stopped else "no daemon was running")
    if left.rows:
        cold = client.status(home)["state"] != "running"
        why = ", and no engine is started for them" if cold and stopped else ""
        wait = "waits" if left.rows == 1 else "wait"
        output.emit(
            f"{words.count(left.rows, 'row')} {wait} in the spool, safe on disk{why}; "
            "to commit them now: hyp flush (the daemon does when it next starts)"
        )


def down(home: Home, told: Mapping[str, Any], service: Installed | None, trouble: str | None) -> PartlyFailed:
    """It does not run. What it told last is still there if it had no chance to take it away."""
    died = {key: told[key] for key in ("pid", "started_at") if key in told} or None
    how = f": it ended without a word as process {died['pid']}, killed or with the machine" if died else ""
    if service is not None and trouble:
        how += f"; {service.kind} says: {trouble}"
    failure = PartlyFailed(
        f"the daemon of {home.root} does not run{how}",
        {"state": "stopped", "died": died, "installed": as_json(service)},
        kind="daemon_not_running",
        repair="hyp daemon start",
    )
    failure.exit_code = 3
    return failure


def show_running(report: dict[str, Any]) -> None:
    sinks, service, gateway = report.pop("sinks", {}), report.pop("installed"), report.pop("gateway", {})
    flush, upkeep, catch_up = report.pop("flush", {}), report.pop("maintain", {}), report.pop("catch_up", {})
    shown = {
        "installed": service["path"] if service else None,
        "gateway": _listens(gateway),
        "last_exchange": gateway.get("last_exchange_at"),
        "last_flush": flush.get("last_flush"),
        "last_import": _done(catch_up),
        "last_maintenance": _done(upkeep),
        "next_maintenance": upkeep.get("next_look") or upkeep.get("waits"),
    }
    output.emit_fields({**report, **shown})
    if sinks:
        output.emit()
        output.emit_table(
            ["sink", "next round", "last round", "status"],
            [(name, each["next_round"], each["last_round"], each["last_status"]) for name, each in sinks.items()],
        )


def show_plan(plan: Plan, json: bool) -> None:
    if plan.why_not:
        output.warn(f"it could not be installed here: {plan.why_not}")
    if json:
        output.emit_json(
            {"path": plan.path, "change": plan.change, "why_not": plan.why_not, "text": plan.text, "dry_run": True}
        )
        return
    words = {"new": "would be written", "replace": "would be replaced by", "none": "is as it should be"}
    output.note(f"{plan.path} {words[plan.change]}:")
    output.emit(plan.text.rstrip("\n"))


def _done(part: Mapping[str, str | None]) -> str | None:
    last = part.get("last_run")
    return f"{last} ({part.get('last_status')})" if last else None


def _listens(gateway: Mapping[str, Any]) -> str | None:
    state = gateway.get("state")
    if state == "listening":
        return f"listening on {gateway.get('listen')}"
    return f"{state}: {gateway['error']}" if gateway.get("error") else state
