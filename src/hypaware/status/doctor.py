"""`hyp doctor`: run all checks in order. A check that raises an exception has failed; the others still run.

This module checks what the engine needs (Python, Java, jars, class archive), the home's processes, the gateway's
address, the clients and the destinations of the sinks; `doctor_home` checks the home. Nothing is delivered and no
credential is sent: a sink check requests a server's health endpoint, connects to the port of an object store, or reads
the permissions of a folder.
"""

from __future__ import annotations

import os
import platform
import shlex
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from hypaware import plugins, text
from hypaware.clients import attach
from hypaware.clients.client import Client
from hypaware.engine import class_archive, jars, jvm
from hypaware.errors import HypError, NotReady
from hypaware.export import sink_registry
from hypaware.gateway.handover import bind_problem, find_free_address
from hypaware.home import Home, locks
from hypaware.status import clients, doctor_home, processes, session_expiry, snapshot
from hypaware.status.clients import ClientStatus
from hypaware.status.diagnostics import CheckResult, StatusInput, check_failed, check_ok, check_warning
from hypaware.text import summarize_error

_VERSION_SECONDS = 10.0
_CONNECT_SECONDS = 3.0
_HEALTH_PATH = "/healthz"
_MAX_CLOCK_DIFFERENCE = 300.0
_STORE_HOSTS = {"s3": "s3.amazonaws.com", "gs": "storage.googleapis.com"}


def read_input(
    home: Home, environment: Mapping[str, str] | None = None, now: datetime | None = None, cache: Path | None = None
) -> StatusInput:
    """Return the input of all checks."""
    return snapshot.read_input(snapshot.Collector(), home, environment, now, cache)[0]


def run_checks(inputs: StatusInput, report: Callable[[str, float, float], None]) -> Iterator[CheckResult]:
    for number, (name, check) in enumerate(CHECKS):
        report("checking", number, len(CHECKS))
        try:
            yield from check(inputs)
        except Exception as error:
            yield check_failed(name, f"the check failed: {summarize_error(error)} ({type(error).__name__})")


def check_python(inputs: StatusInput) -> Iterator[CheckResult]:
    bits = 8 * struct.calcsize("P")
    detail = f"Python {platform.python_version()} ({bits} bits) at {sys.executable}"
    if sys.version_info[:2] >= (3, 11) and bits == 64:
        yield check_ok("python", detail)
    else:
        yield check_failed("python", f"{detail}; 64-bit 3.11 or later is required")


def check_java(inputs: StatusInput) -> Iterator[CheckResult]:
    try:
        found = jvm.find_java(inputs.environment)
    except NotReady as missing:
        yield check_failed("java", missing.message, *missing.repair)
        return
    yield check_ok("java", f"Java {found.version} at {found.executable}")


def check_jars(inputs: StatusInput) -> Iterator[CheckResult]:
    """Verify the hash of every jar."""
    folder = jars.jar_folder(inputs.cache, jars.locked_jars())
    try:
        jars.verify_jars(folder, jars.locked_jars())
    except NotReady as error:
        message = error.message if folder.is_dir() else f"not installed in {folder}"
        yield check_failed("jars", message, "hyp engine install")
        return
    total = text.format_size(sum(jar.size for jar in jars.locked_jars()))
    yield check_ok("jars", f"{text.format_count(len(jars.locked_jars()), 'jar')}, {total}, all hashes match")


def check_class_archive(inputs: StatusInput) -> Iterator[CheckResult]:
    try:
        installed = jars.find_installed_jars(inputs.cache)
        java, class_path = jvm.find_java(inputs.environment), jvm.build_class_path(installed)
        path = class_archive.locate_archive(inputs.cache, java, class_path)
    except NotReady as missing:
        yield check_warning("class_archive", "missing, because Java or the jars are missing", *missing.repair)
        return
    if class_archive.archive_options(path):
        yield check_ok("class_archive", f"{path.name}, {text.format_size(path.stat().st_size)}")
    else:
        yield check_warning("class_archive", "missing: the engine starts at half the speed", "hyp engine install")


def check_daemon(inputs: StatusInput) -> Iterator[CheckResult]:
    if inputs.is_daemon_running:
        yield check_ok("daemon", f"running as process {inputs.daemon.get('pid')}")
    elif any(each.enabled for each in inputs.config.clients.values()) or inputs.config.sinks:
        yield check_warning("daemon", "not running: nothing is recorded or exported automatically", "hyp daemon start")
    else:
        yield check_ok("daemon", "not running")


def check_engine(inputs: StatusInput) -> Iterator[CheckResult]:
    status = processes.inspect_engine(inputs.home, inputs.cache, inputs.environment).facts
    if status["state"] == "not_answering":
        yield check_warning(
            "engine", f"process {status.get('pid')} holds the engine's lock but does not answer", "hyp engine stop"
        )
        return
    if status["state"] == "running":
        yield check_ok("engine", f"running as process {status.get('pid')}")
        return
    found = locks.find_running(inputs.home)
    if found and found.name == "a Spark process" and not locks.is_locked(inputs.home.engine_lock):
        yield check_warning(
            "engine",
            f"process {found.pid} holds the lake but is not this home's engine: a command that runs Spark itself, "
            "or a leftover of an engine",
            f"ps -fp {found.pid}",
        )
    else:
        yield check_ok("engine", "not running; it starts when it is needed")


def check_gateway(inputs: StatusInput) -> Iterator[CheckResult]:
    listen = inputs.daemon_part("gateway").get("listen") or inputs.config.gateway.listen
    use_other_port = f"hyp config set gateway.listen {find_free_address(listen)}"
    answered_by = processes.probe_gateway(inputs.home, listen)
    if answered_by == "gateway":
        yield check_ok("gateway", f"the gateway answers on {listen}")
    elif answered_by == "fallback":
        yield check_warning("gateway", f"requests to {listen} are passed through without recording", "hyp daemon start")
    elif answered_by == "stranger":
        yield check_failed("gateway", f"another program listens on {listen}", use_other_port)
    elif reason := bind_problem(listen):
        yield check_failed("gateway", f"cannot listen on {listen}: {reason}", use_other_port)
    else:
        yield check_ok("gateway", f"{listen} is free")


def check_clients(inputs: StatusInput) -> Iterator[CheckResult]:
    known = {client.name: client for client in plugins.load_plugins(plugins.CLIENTS, Client)}
    for client in clients.inspect_clients(inputs).facts:
        name = f"client:{client.name}"
        if not client.installed:
            yield check_ok(name, "not installed")
            continue
        version, problem = _client_version(client)
        if problem:
            yield check_warning(name, problem, f"{client.name} --version")
        problems = [each for each in clients.client_diagnostics(inputs, client) if each.severity != "info"]
        for each in problems:
            make = check_failed if each.severity == "error" else check_warning
            yield make(name, f"{version}; {each.message}", *each.repair)
        notes: Sequence[str] = ()
        if client.is_attached and (settings := known[client.name].settings):
            gateway = f"http://{inputs.config.gateway.listen}"
            notes = attach.attach_client(inputs.home, settings, gateway, inputs.environment, dry_run=True).notes
        for note in notes:
            yield check_warning(name, f"{version}; {note}")
        if not problems and not notes:
            yield check_ok(name, f"{version}; {_recorded_how(client)}")


def _recorded_how(client: ClientStatus) -> str:
    if client.is_attached:
        return "attached"
    return "followed, not attached" if client.follow else "not attached"


def _client_version(client: ClientStatus) -> tuple[str, str | None]:
    """Return the client's version as text, and why it could not be read."""
    if client.program is None:
        return f"no {client.name} on the PATH", None
    try:
        done = subprocess.run(
            [client.program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return client.program, f"cannot read the version of {client.program}: {summarize_error(error)}"
    output = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
    if done.returncode != 0:
        return client.program, f"{client.program} --version failed with exit code {done.returncode}: {output}"
    return f"{output} at {client.program}", None


def check_sinks(inputs: StatusInput) -> Iterator[CheckResult]:
    for sink, declared in inputs.config.sinks.items():
        name = f"sink:{sink}"
        if inputs.state.identity is None:
            yield check_ok(name, "not tested: the home has not been used yet")
            continue
        try:
            address = sink_registry.sink_address(inputs.home, inputs.config, inputs.state.identity, sink)
        except HypError as error:
            yield check_failed(name, error.message, *(error.repair or ("hyp config show",)))
            continue
        catalog = declared.options.get("catalog")
        uri = catalog.get("uri") if isinstance(catalog, dict) else None
        yield _check_destination(inputs, name, sink, urlsplit(str(uri) if uri else address))


def _check_destination(inputs: StatusInput, name: str, sink: str, url: SplitResult) -> CheckResult:
    if url.scheme == "file":
        path = Path(url.netloc + url.path)
        existing = next(each for each in (path, *path.parents) if each.exists())
        if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
            return check_ok(name, f"{path} is writable" if existing == path else f"{path} will be created")
        return check_failed(name, f"{existing} is not writable", f"ls -ld {shlex.quote(str(existing))}")
    if url.scheme in ("http", "https"):
        return _check_server(inputs, name, sink, url)
    if endpoint := parse_qs(url.query).get("endpoint"):
        return _check_port(name, urlsplit(endpoint[0] if "://" in endpoint[0] else f"https://{endpoint[0]}"))
    if url.scheme == "abfss":
        return _check_port(name, urlsplit(f"https://{url.netloc.rpartition('@')[2]}"))
    if url.scheme in _STORE_HOSTS:
        return _check_port(name, urlsplit(f"https://{_STORE_HOSTS[url.scheme]}"))
    return check_ok(name, f"{url.geturl()}: not tested, because this kind of address cannot be probed")


def _check_server(inputs: StatusInput, name: str, sink: str, url: SplitResult) -> CheckResult:
    connection_class = HTTPSConnection if url.scheme == "https" else HTTPConnection
    try:
        with closing(connection_class(url.hostname or "", url.port, timeout=_CONNECT_SECONDS)) as connection:
            connection.request("GET", url.path.rstrip("/") + _HEALTH_PATH)
            date = connection.getresponse().headers.get("Date")
    except (OSError, HTTPException, ssl.SSLError) as error:
        return check_failed(name, f"{url.geturl()} cannot be reached: {summarize_error(error)}", f"hyp export {sink}")
    difference = 0.0
    with suppress(TypeError, ValueError):
        difference = (inputs.now - parsedate_to_datetime(date or "")).total_seconds()
    if abs(difference) > _MAX_CLOCK_DIFFERENCE:
        offset = f"{text.format_duration(abs(difference))} {'ahead of' if difference > 0 else 'behind'}"
        return check_warning(name, f"{url.netloc} answers; our clock is {offset} its clock", "date -u")
    return check_ok(name, f"{url.netloc} answers")


def _check_port(name: str, url: SplitResult) -> CheckResult:
    host, port = unquote(url.hostname or ""), url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        message = f"{host}:{port} cannot be reached: {summarize_error(error)}"
        return check_failed(name, message, f"hyp export {name.partition(':')[2]}")
    return check_ok(name, f"{host}:{port} can be reached")


def check_history(inputs: StatusInput) -> Iterator[CheckResult]:
    """Check that what the clients are about to delete is recorded."""
    for each in session_expiry.list_expiring(inputs.home, inputs.config, inputs.environment, inputs.now):
        name = f"history:{each.client}"
        kept = f"kept for {text.format_count(each.rule.days, 'day')}, {each.rule.setting}" if each.rule else "kept"
        detail = session_expiry.describe_history(each.as_json(), each.client) or "nothing is about to be deleted"
        problems = list(session_expiry.expiry_diagnostics(each))
        yield from (check_warning(name, problem.message, *problem.repair) for problem in problems)
        if not problems:
            yield check_ok(name, f"{detail} ({kept})")


CheckFunction = Callable[[StatusInput], Iterator[CheckResult]]
CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("python", check_python),
    ("java", check_java),
    ("jars", check_jars),
    ("class_archive", check_class_archive),
    ("permissions", doctor_home.check_permissions),
    ("file_system", doctor_home.check_file_system),
    ("disk", doctor_home.check_disk_space),
    ("sync", doctor_home.check_sync),
    ("config", doctor_home.check_config),
    ("profile", doctor_home.check_profile),
    ("secrets", doctor_home.check_secrets),
    ("state", lambda inputs: doctor_home.check_database("state", inputs.home.state, "hyp verify")),
    ("catalog", lambda inputs: doctor_home.check_database("catalog", inputs.home.catalog, "hyp restore --help")),
    ("key_index", doctor_home.check_key_index),
    ("tombstones", doctor_home.check_tombstones),
    ("clock", doctor_home.check_clock),
    ("daemon", check_daemon),
    ("engine", check_engine),
    ("gateway", check_gateway),
    ("clients", check_clients),
    ("history", check_history),
    ("sinks", check_sinks),
)
