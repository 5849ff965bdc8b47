"""The home's processes in a status: daemon, engine, server, gateway and OTLP receiver.

The locks of daemon and server show whether they run; `run/daemon.json` and `run/server.json` hold the details. The
engine answers over its socket, and the gateway's address is probed.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypaware import __version__, extras, text
from hypaware.config.shared_lake import find_shared_lake
from hypaware.engine import client, jars, jvm
from hypaware.errors import HypError, NotReady
from hypaware.gateway import attach_status
from hypaware.gateway.handover import fallback_lock_path, find_free_address
from hypaware.home import Home, daemon_process, locks
from hypaware.status.diagnostics import (
    Diagnostic,
    PartStatus,
    StatusInput,
    call_with_timeout,
    error,
    file_size,
    info,
    warning,
)
from hypaware.text import summarize_error

_FAILED = ("failed", "partial")
_COUNTS = ("exchanges", "recorded", "incomplete", "dropped", "ignored", "rejected_rows", "unreachable")
_TELEMETRY_COUNTS = ("requests", "rows", "ignored", "rejected")
_CONNECT_SECONDS = 0.3
_SHOWN_NAMES = 3


def inspect_daemon(home: Home) -> dict[str, Any]:
    pid = daemon_process.running_daemon(home)
    if pid is None:
        return {"state": "stopped"}
    status = daemon_process.read_daemon_status(home)
    # A file with another pid was left by an earlier daemon that was killed.
    return {"state": "running", "pid": pid, **(status if status.get("pid") == pid else {})}


def daemon_diagnostics(inputs: StatusInput, reasons: list[str]) -> Iterator[Diagnostic]:
    """Yield the daemon's diagnostics. `reasons` lists why this home needs a daemon."""
    if not inputs.is_daemon_running:
        if reasons and inputs.daemon["state"] == "stopped":
            message = "the daemon is not running, so nothing is recorded or exported automatically"
            yield error("daemon_down", f"{message} ({', '.join(reasons)})", "hyp daemon start")
        return
    version = inputs.daemon.get("version")
    if version and version != __version__:
        message = f"the daemon runs version {version}, but {__version__} is installed"
        yield warning("daemon_outdated", message, "hyp daemon restart")
    if since := inputs.daemon.get("stopping_since"):
        message = f"the daemon was asked to stop {text.format_ago(since, inputs.now)} and has not ended"
        yield warning("daemon_stopping", f"{message}: new exchanges are not recorded", "hyp daemon stop --force")
    flush, maintenance, imports = map(inputs.daemon_part, ("flush", "maintain", "catch_up"))
    if flush.get("last_status") in _FAILED:
        when = text.format_ago(flush.get("last_flush"), inputs.now)
        yield error("flush_failing", f"the daemon's last flush failed ({when})", "hyp flush", "hyp doctor")
    if maintenance.get("last_status") in _FAILED:
        when = text.format_ago(maintenance.get("last_run"), inputs.now)
        yield warning("maintenance_failing", f"the daemon's last maintenance failed ({when})", "hyp maintain")
    if isinstance(reason := maintenance.get("waits"), str) and reason != "off":
        yield info("maintenance_waits", reason, "hyp maintain")
    page = inputs.daemon_part("page")
    if page.get("state") == "down":
        message = f"the page cannot be served on {page.get('listen')}: {page.get('error')}"
        yield info("page_down", message, "hyp open --port 0")
    if imports.get("last_status") in _FAILED:
        when = text.format_ago(imports.get("last_run"), inputs.now)
        yield warning("catch_up_failing", f"the daemon's last transcript import failed ({when})", "hyp backfill")


def inspect_engine(home: Home, cache: Path, environment: Mapping[str, str]) -> PartStatus[dict[str, Any]]:
    diagnostics = []
    try:
        status = call_with_timeout(lambda: client.engine_status(home))
    except Exception as exception:
        status = {"state": "not_answering", "error": summarize_error(exception)}
    # A running engine has found its Java, perhaps in another environment than this one.
    if status["state"] != "running":
        try:
            call_with_timeout(lambda: jvm.find_java(environment))
        except NotReady as no_java:
            message = f"{no_java.message}: flushes and queries cannot run"
            diagnostics.append(warning(no_java.kind, message, *no_java.repair))
        except TimeoutError:
            pass  # a Java that is slow to answer exists; `hyp doctor` waits for it
    # `hyp doctor` verifies the hashes of the jars.
    folder, locked = jars.jar_folder(cache, jars.locked_jars()), jars.locked_jars()
    if missing := sum(file_size(folder / jar.file_name) != jar.size for jar in locked):
        message = f"the engine is not installed ({missing} jars are missing): flushes and queries cannot run"
        diagnostics.append(warning("engine_not_installed", message, "hyp engine install"))
    facts = {**status, "installed": not diagnostics}
    if find_shared_lake(home) is not None:
        diagnostics += _inspect_lake_holder(home, facts)
    if status["state"] == "not_answering":
        diagnostics.append(warning("engine_not_answering", "the engine does not answer", "hyp engine stop"))
    return PartStatus(facts, tuple(diagnostics))


def _inspect_lake_holder(home: Home, facts: dict[str, Any]) -> Iterator[Diagnostic]:
    """Add to the engine's facts who holds the shared lake; yield a diagnostic if it is another machine."""
    from hypaware.engine.lake_turns import find_lake_holder  # needs the driver of PostgreSQL
    from hypaware.state.lake_lease import own_name

    try:
        holder = call_with_timeout(lambda: find_lake_holder(home))
    except (HypError, TimeoutError) as exception:
        yield warning("lake_unavailable", f"who has the shared lake is unknown: {summarize_error(exception)}")
        return
    if holder:
        facts["lake_holder"] = {"owner": holder.owner, "since": holder.since.isoformat(), "waiting": holder.waiting}
        if holder.owner != own_name(facts.get("pid")):
            message = (
                f"the shared lake is in use by {holder}; jobs of this machine wait, and its rows stay in the spool"
            )
            yield info("lake_in_use", message)


def inspect_server(home: Home) -> dict[str, Any]:
    if not locks.is_locked(home.run / "server.lock"):
        return {"state": "stopped"}
    # There is no status file until the server listens.
    status: Any = None
    with suppress(OSError, ValueError):
        status = json.loads((home.run / "server.json").read_bytes())
    listen = status.get("listen") if isinstance(status, dict) else None
    return {"state": "running", "pid": locks.lock_holder(home.run / "server.lock"), "listen": listen}


def inspect_gateway(inputs: StatusInput, is_needed: bool) -> PartStatus[dict[str, Any]]:
    """Return the gateway's facts. Unless `is_needed` or the daemon runs it, its address is not probed."""
    status = inputs.daemon_part("gateway")
    listen = status.get("listen") or inputs.config.gateway.listen
    is_probed = is_needed or status.get("state") in ("listening", "down")
    # The daemon is not running or has not reported the state yet.
    default_state = "unknown" if inputs.is_daemon_running else "down" if is_needed else "off"
    facts = {
        "source": "gateway",
        "kind": "live",
        "listen": listen,
        "state": status.get("state") or default_state,
        "answered_by": probe_gateway(inputs.home, listen) if is_probed else None,
        "error": status.get("error"),
        "since": status.get("since"),
        **{name: _number(status, name) for name in _COUNTS},
        **{name: _counts(status.get(name)) for name in ("unknown", "without_row")},
        "last_exchange_at": status.get("last_exchange_at"),
    }
    return PartStatus(facts, tuple(_gateway_diagnostics(inputs, facts, is_needed)))


def probe_gateway(home: Home, listen: str) -> str | None:
    """Return what answers at the address: `gateway`, `fallback`, `stranger` or None."""
    host, _, port = listen.rpartition(":")
    address = "127.0.0.1" if host in ("", "0.0.0.0", "[::]", "localhost") else host.strip("[]")
    with suppress(OSError, ValueError):
        socket.create_connection((address, int(port)), timeout=_CONNECT_SECONDS).close()
        url_host = f"[{address}]" if ":" in address else address
        with suppress(TimeoutError):
            url = f"http://{url_host}:{port}"
            return call_with_timeout(lambda: attach_status.probe_gateway(home, url)) or "stranger"
        return "stranger"
    return None


def _gateway_diagnostics(inputs: StatusInput, facts: Mapping[str, Any], is_needed: bool) -> Iterator[Diagnostic]:
    listen, is_down = facts["listen"], facts["state"] == "down"
    if facts["answered_by"] == "stranger" and (is_down or is_needed):
        use_other_port = f"hyp config set gateway.listen {find_free_address(listen)}"
        message = f"another program listens on {listen}, the gateway's address"
        yield error("port_taken", message, use_other_port, "hyp client attach")
    elif inputs.is_daemon_running and is_down:
        message = f"the gateway does not listen on {listen}: {facts['error'] or 'no reason is known'}"
        yield error("gateway_down", message, "hyp daemon restart", "hyp doctor")
    elif not is_needed and not inputs.is_daemon_running and locks.is_locked(fallback_lock_path(inputs.home)):
        message = f"no client is attached, but {listen} stays open for sessions that were already running, until an "
        pid = locks.lock_holder(fallback_lock_path(inputs.home))
        yield info("address_open", f"{message}hour after their last request", *([f"kill {pid}"] if pid else ()))
    if facts["dropped"]:
        exchanges = text.format_count(facts["dropped"], "exchange was", "exchanges were")
        message = f"{exchanges} not recorded since the daemon started: they arrived faster than they could be written"
        yield warning("records_dropped", message, "hyp backfill")
    if facts["unknown"]:
        total, names = _most_frequent(facts["unknown"])
        message = f"{text.format_count(total, 'exchange')} could not be decoded ({names}); the raw "
        kept = f"{'exchange is' if total == 1 else 'exchanges are'} kept for a version that can"
        yield warning("dialect_unknown", message + kept, "hyp reproject")
    if facts["unreachable"]:
        exchanges = text.format_count(facts["unreachable"], "exchange")
        yield info("upstream_down", f"the provider could not be reached in {exchanges} since the daemon started")
    if facts["without_row"]:
        total, names = _most_frequent(facts["without_row"])
        message = f"{text.format_count(total, 'item')} of live conversations produced no row, as in an import ({names})"
        yield info("live_items_without_row", f"{message}; the raw exchanges are kept")
    if facts["rejected_rows"]:
        rows = text.format_count(facts["rejected_rows"], "row")
        yield warning("live_rows_refused", f"{rows} of live exchanges did not fit their dataset", "hyp doctor")
    if facts["ignored"]:
        exchanges = text.format_count(facts["ignored"], "exchange was", "exchanges were")
        message = f"{exchanges} not recorded, as your folders and sessions ask"
        yield info("exchanges_ignored", message, "hyp session status")


def inspect_otlp(inputs: StatusInput) -> PartStatus[dict[str, Any] | None]:
    """Return the facts of the OTLP receiver, or None if it is off."""
    status, configured = inputs.daemon_part("otlp"), inputs.config.otlp.listen
    state = status.get("state") or ("unknown" if inputs.is_daemon_running else "down")
    if not configured and state in ("off", "unknown", "down"):
        return PartStatus(None)
    facts = {
        "source": "otlp",
        "kind": "telemetry",
        "listen": status.get("listen") or configured,
        "state": state,
        "error": status.get("error"),
        **{name: _number(status, name) for name in _TELEMETRY_COUNTS},
        "by_dataset": _counts(status.get("by_dataset")),
        "last_rows_at": status.get("last_rows_at"),
        "last_error": status.get("last_error"),
    }
    return PartStatus(facts, tuple(_otlp_diagnostics(inputs, facts)))


def _otlp_diagnostics(inputs: StatusInput, facts: Mapping[str, Any]) -> Iterator[Diagnostic]:
    if inputs.is_daemon_running and facts["state"] == "down":
        listen, reason = facts["listen"], facts["error"] or "no reason is known"
        if extras.is_installed("otlp"):
            repair = f"hyp config set otlp.listen {find_free_address(listen)}"
        else:
            repair = extras.install_command("otlp")
        yield error("otlp_down", f"the OTLP receiver does not listen on {listen}: {reason}", repair)
    if facts["rejected"]:
        records = text.format_count(facts["rejected"], "record was", "records were")
        message = f"{records} rejected by the OTLP receiver since the daemon started ({facts['last_error']})"
        yield warning("telemetry_rejected", message)
    if facts["ignored"]:
        records = text.format_count(facts["ignored"], "telemetry record was", "telemetry records were")
        message = f"{records} not recorded, as your folders and sessions ask"
        yield info("telemetry_ignored", message, "hyp session status")


def _counts(value: Any) -> dict[str, Any]:
    return {str(name): count for name, count in value.items()} if isinstance(value, Mapping) else {}


def _most_frequent(counts: Mapping[str, Any]) -> tuple[int, str]:
    """Return the total and the most frequent names."""
    names = sorted(counts, key=lambda name: -_number(counts, name))
    shown = ", ".join(names[:_SHOWN_NAMES]) + (", …" if len(names) > _SHOWN_NAMES else "")
    return sum(_number(counts, name) for name in names), shown


def _number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
