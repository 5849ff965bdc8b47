"""The output of `hyp daemon`: a running or stopped daemon, and its service."""

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
        no_engine = client.status(home)["state"] != "running"
        why = " because the engine is not running" if no_engine and stopped else ""
        verb = "is" if left.rows == 1 else "are"
        output.emit(
            f"{words.count(left.rows, 'row')} {verb} still in the spool{why}, safe on disk; "
            "to commit now: hyp flush (otherwise the daemon does it after its next start)"
        )


def down(home: Home, last_status: Mapping[str, Any], service: Installed | None, problem: str | None) -> PartlyFailed:
    """Return the error for a daemon that is not running.

    `last_status` is what the daemon wrote last. It removes that file on a clean stop, so its presence means a crash.
    """
    died = {key: last_status[key] for key in ("pid", "started_at") if key in last_status} or None
    how = f": process {died['pid']} was killed or ended with the machine" if died else ""
    if service is not None and problem:
        how += f"; {service.kind} reports: {problem}"
    failure = PartlyFailed(
        f"the daemon of {home.root} is not running{how}",
        {"state": "stopped", "died": died, "installed": as_json(service)},
        kind="daemon_not_running",
        repair="hyp daemon start",
    )
    failure.exit_code = 3
    return failure


def show_running(report: dict[str, Any]) -> None:
    sinks, service, gateway = report.pop("sinks", {}), report.pop("installed"), report.pop("gateway", {})
    flush, maintenance, imports = report.pop("flush", {}), report.pop("maintain", {}), report.pop("catch_up", {})
    shown = {
        "installed": service["path"] if service else None,
        "gateway": _gateway_text(gateway),
        "last_exchange": gateway.get("last_exchange_at"),
        "last_flush": flush.get("last_flush"),
        "last_import": _last_run(imports),
        "last_maintenance": _last_run(maintenance),
        "next_maintenance": maintenance.get("next_look") or maintenance.get("waits"),
    }
    output.emit_fields({**report, **shown})
    if sinks:
        output.emit()
        output.emit_table(
            ["sink", "next delivery", "last delivery", "status"],
            [(name, each["next_round"], each["last_round"], each["last_status"]) for name, each in sinks.items()],
        )


def show_plan(plan: Plan, json: bool) -> None:
    if plan.why_not:
        output.warn(f"the service cannot be installed: {plan.why_not}")
    if json:
        output.emit_json(
            {"path": plan.path, "change": plan.change, "why_not": plan.why_not, "text": plan.text, "dry_run": True}
        )
        return
    words = {"new": "would be written", "replace": "would be replaced by", "none": "is up to date"}
    output.note(f"{plan.path} {words[plan.change]}:")
    output.emit(plan.text.rstrip("\n"))


def _last_run(part: Mapping[str, str | None]) -> str | None:
    last = part.get("last_run")
    return f"{last} ({part.get('last_status')})" if last else None


def _gateway_text(gateway: Mapping[str, Any]) -> str | None:
    state = gateway.get("state")
    if state == "listening":
        return f"listening on {gateway.get('listen')}"
    return f"{state}: {gateway['error']}" if gateway.get("error") else state
