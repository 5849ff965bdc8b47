"""The home's processes in a status: daemon, engine, server and gateway.

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

from hypaware import __version__, text
from hypaware.engine import client, jars, jvm
from hypaware.errors import NotReady
from hypaware.gateway import attach_status
from hypaware.gateway.handover import find_free_address
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
            yield error(
                "daemon_down",
                f"the daemon is not running, so nothing is recorded or exported automatically ({', '.join(reasons)})",
                "hyp daemon start",
            )
        return
    version = inputs.daemon.get("version")
    if version and version != __version__:
        yield warning(
            "daemon_outdated",
            f"the daemon runs version {version}, but {__version__} is installed",
            "hyp daemon restart",
        )
    yield from _task_diagnostics(inputs)


def _task_diagnostics(inputs: StatusInput) -> Iterator[Diagnostic]:
    flush, maintenance, imports = map(inputs.daemon_part, ("flush", "maintain", "catch_up"))
    if flush.get("last_status") in _FAILED:
        when = text.format_ago(flush.get("last_flush"), inputs.now)
        yield error("flush_failing", f"the daemon's last flush failed ({when})", "hyp flush", "hyp doctor")
    if maintenance.get("last_status") in _FAILED:
        when = text.format_ago(maintenance.get("last_run"), inputs.now)
        yield warning("maintenance_failing", f"the daemon's last maintenance failed ({when})", "hyp maintain")
    if isinstance(reason := maintenance.get("waits"), str) and reason != "off":
        yield info("maintenance_waits", reason, "hyp maintain")
    if imports.get("last_status") in _FAILED:
        when = text.format_ago(imports.get("last_run"), inputs.now)
        yield warning("catch_up_failing", f"the daemon's last transcript import failed ({when})", "hyp backfill")


def inspect_engine(home: Home, cache: Path, environment: Mapping[str, str]) -> PartStatus[dict[str, Any]]:
    status, missing = _engine_status(home), _missing_jars(cache)
    # A running engine has found its Java, perhaps in another environment than this one.
    java_error = None if status["state"] == "running" else _java_error(environment)
    facts = {**status, "installed": not missing and java_error is None}
    return PartStatus(facts, tuple(_engine_diagnostics(facts, missing, java_error)))


def _engine_status(home: Home) -> dict[str, Any]:
    try:
        return call_with_timeout(lambda: client.engine_status(home))
    except Exception as error:
        return {"state": "not_answering", "error": summarize_error(error)}


def _missing_jars(cache: Path) -> list[str]:
    """Return the jars that are missing, by name and size. `hyp doctor` verifies their hashes."""
    folder = jars.jar_folder(cache, jars.locked_jars())
    return [jar.file_name for jar in jars.locked_jars() if file_size(folder / jar.file_name) != jar.size]


def _java_error(environment: Mapping[str, str]) -> NotReady | None:
    try:
        call_with_timeout(lambda: jvm.find_java(environment))
    except NotReady as error:
        return error
    except TimeoutError:
        # A Java that is slow to answer exists; `hyp doctor` waits for it.
        return None
    return None


def _engine_diagnostics(facts: dict[str, Any], missing: list[str], java_error: NotReady | None) -> Iterator[Diagnostic]:
    if java_error:
        yield warning(java_error.kind, f"{java_error.message}: flushes and queries cannot run", *java_error.repair)
    if missing:
        yield warning(
            "engine_not_installed",
            f"the engine is not installed ({len(missing)} jars are missing): flushes and queries cannot run",
            "hyp engine install",
        )
    if facts["state"] == "not_answering":
        yield warning("engine_not_answering", "the engine does not answer", "hyp engine stop")


def inspect_server(home: Home) -> dict[str, Any]:
    if not locks.is_locked(home.run / "server.lock"):
        return {"state": "stopped"}
    pid = locks.lock_holder(home.run / "server.lock")
    return {"state": "running", "pid": pid, "listen": _read_server_status(home).get("listen")}


def _read_server_status(home: Home) -> dict[str, Any]:
    """Return the contents of `run/server.json`, or an empty dict until the server listens."""
    try:
        status = json.loads((home.run / "server.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def inspect_gateway(inputs: StatusInput, is_needed: bool) -> PartStatus[dict[str, Any]]:
    """Return the gateway's facts. Unless `is_needed` or the daemon runs it, its address is not probed."""
    status = inputs.daemon_part("gateway")
    listen = status.get("listen") or inputs.config.gateway.listen
    is_probed = is_needed or status.get("state") in ("listening", "down")
    facts = {
        "source": "gateway",
        "kind": "live",
        "listen": listen,
        "state": status.get("state") or _default_state(inputs, is_needed),
        "answered_by": probe_gateway(inputs.home, listen) if is_probed else None,
        "error": status.get("error"),
        "since": status.get("since"),
        **{
            name: _number(status, name)
            for name in ("exchanges", "recorded", "incomplete", "dropped", "ignored", "rejected_rows")
        },
        **{name: _counts(status.get(name)) for name in ("unknown", "without_row")},
        "last_exchange_at": status.get("last_exchange_at"),
    }
    return PartStatus(facts, (*_listen_diagnostics(inputs, facts, is_needed), *_traffic_diagnostics(facts)))


def _default_state(inputs: StatusInput, is_needed: bool) -> str:
    """Return the gateway's state if the daemon is not running or has not reported it yet."""
    if inputs.is_daemon_running:
        return "unknown"
    return "down" if is_needed else "off"


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


def _listen_diagnostics(inputs: StatusInput, facts: Mapping[str, Any], is_needed: bool) -> Iterator[Diagnostic]:
    listen, is_down = facts["listen"], facts["state"] == "down"
    if facts["answered_by"] == "stranger" and (is_down or is_needed):
        yield error(
            "port_taken",
            f"another program listens on {listen}, the gateway's address",
            f"hyp config set gateway.listen {find_free_address(listen)}",
            "hyp client attach",
        )
    elif inputs.is_daemon_running and is_down:
        why = facts["error"] or "no reason is known"
        yield error(
            "gateway_down",
            f"the gateway does not listen on {listen}: {why}",
            "hyp daemon restart",
            "hyp doctor",
        )


def _traffic_diagnostics(facts: Mapping[str, Any]) -> Iterator[Diagnostic]:
    if facts["dropped"]:
        exchanges = text.format_count(facts["dropped"], "exchange was", "exchanges were")
        yield warning(
            "records_dropped",
            f"{exchanges} not recorded since the daemon started: they arrived faster than they could be written",
            "hyp backfill",
        )
    if facts["unknown"]:
        total, names = _most_frequent(facts["unknown"])
        yield warning(
            "dialect_unknown",
            f"{text.format_count(total, 'exchange')} could not be decoded ({names}); the raw "
            f"{'exchange is' if total == 1 else 'exchanges are'} kept for a version that can",
            "hyp reproject",
        )
    if facts["without_row"]:
        total, names = _most_frequent(facts["without_row"])
        yield info(
            "live_items_without_row",
            f"{text.format_count(total, 'item')} of live conversations produced no row, as in an import ({names}); "
            "the raw exchanges are kept",
        )
    if facts["rejected_rows"]:
        rows = text.format_count(facts["rejected_rows"], "row")
        yield warning("live_rows_refused", f"{rows} of live exchanges did not fit their dataset", "hyp doctor")
    if facts["ignored"]:
        exchanges = text.format_count(facts["ignored"], "exchange was", "exchanges were")
        yield info(
            "exchanges_ignored", f"{exchanges} not recorded, as your folders and sessions ask", "hyp session status"
        )


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
