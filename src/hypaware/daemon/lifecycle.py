"""Start, stop, install and uninstall a home's daemon.

A background daemon has its own session, `/` as its working directory and nothing on stdin. Its log lines go to the
rotating log; its stdout and stderr go to `logs/daemon-start.log`, which therefore holds output from before the log was
opened and from crashes that could not be logged.

A daemon is ready when it holds its lock and has written its status file (`run/daemon.json`). The lock on
`run/daemon-start.lock` serialises concurrent starts: the second one finds the daemon of the first.

A daemon that a supervisor started is stopped through the supervisor, which would otherwise restart it. It is killed
only if the user passes `--force`.

An installed daemon is a user service: one service file, with which systemd or launchd starts it at login. The file
names the interpreter and the home and holds no secret. It is replaced atomically, and only if `hyp daemon install`
wrote it for this home; nothing else is written. Installing and uninstalling are idempotent.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hypaware import config as configuration
from hypaware import faults
from hypaware.daemon import log_file, supervisor
from hypaware.daemon.supervisor import Notify, Supervisor, ignore_notice
from hypaware.engine import client, launcher
from hypaware.errors import HypError, NotReady, Retryable
from hypaware.home import Home, daemon_process, durable_files, locks
from hypaware.state.home_opener import read_identity

_before_write = faults.crash_point(
    "daemon.install.before-write", "the service file does not exist yet, or is the old one"
)
_after_write = faults.crash_point(
    "daemon.install.after-write", "the service file is written; the supervisor has not read it"
)
_before_remove = faults.crash_point(
    "daemon.uninstall.before-remove", "the service is disabled and stopped; its file exists"
)
_after_remove = faults.crash_point(
    "daemon.uninstall.after-remove", "the service file is removed; the supervisor has not noticed"
)

READY_SECONDS = 15.0
# For an installation: the machine may be busy, and a moved home takes longer to open.
PATIENT_SECONDS = 60.0
STOP_SECONDS = 60.0
_KILLED_SECONDS = 10.0
_POLL_SECONDS = 0.02
_SUPERVISOR_SECONDS = 0.5
_NOTIFY_SECONDS = 5.0
_MIN_FREE_BYTES = 64 << 10
# Only failing processes write the start log, but one may fail every few seconds.
_START_LOG_BYTES = 256 * 1024


def start_daemon(home: Home, wait: float = READY_SECONDS, notify: Notify = ignore_notice) -> int:
    """Start the daemon if necessary, and return its pid once it is ready.

    Raises NotReady if the daemon ends first or is not ready in time. A broken config or an unusable home raises its own
    error before anything is started. `notify` receives messages for the user.
    """
    deadline = time.monotonic() + wait
    check_can_start(home)
    while (lock := locks.try_lock(home.run / "daemon-start.lock")) is None:
        _pause_until(home, deadline)
    try:
        if (pid := ready_pid(home)) is not None:
            return pid
        if daemon_process.running_daemon(home) is not None:
            return _wait_until_ready(home, deadline)
        if (service := find_installed_supervisor(home, notify)) is not None:
            return _start_supervised(home, service, deadline)
        return _start_detached(home, deadline)
    finally:
        locks.unlock(lock)


def check_can_start(home: Home) -> None:
    """Raise the errors that would keep a daemon from starting, as far as they can be detected beforehand."""
    read_identity(home)
    configuration.load(home)
    if shutil.disk_usage(home.root).free < _MIN_FREE_BYTES:
        # The daemon could not even log why it ends.
        raise NotReady(f"the disk of {home.root} is full", kind="disk_full", repair="hyp status")


def ready_pid(home: Home) -> int | None:
    """Return the pid of a daemon that is ready, or None."""
    pid = daemon_process.running_daemon(home)
    return pid if pid is not None and daemon_process.read_daemon_status(home).get("pid") == pid else None


def _start_detached(home: Home, deadline: float) -> int:
    log = log_file.start_log_path(home)
    command, environment = supervisor.hyp_command("daemon", "run", "--quiet"), supervisor.background_environment(home)
    process, log_start = launcher.start_detached(command, log, _START_LOG_BYTES, environment)
    while (pid := ready_pid(home)) is None:
        if (code := process.poll()) is not None:
            if daemon_process.running_daemon(home) is not None:
                return _wait_until_ready(home, deadline)  # a daemon was started by hand at the same moment
            reason = f"exit code {code}" if code >= 0 else f"signal {-code}"
            output = log_file.read_tail(log, log_start) or log_file.read_tail(log_file.log_path(home))
            raise _start_failure(home, f"{reason}\n{output}", _log_command(home))
        _pause_until(home, deadline)
    return pid


def _start_supervised(home: Home, service: Supervisor, deadline: float) -> int:
    service.start()
    checked_at = time.monotonic()
    while (pid := ready_pid(home)) is None:
        if time.monotonic() - checked_at > _SUPERVISOR_SECONDS:
            if (failure := service.failure()) is not None:
                raise _start_failure(home, failure, service.log_command)
            checked_at = time.monotonic()
        _pause_until(home, deadline)
    return pid


def _start_failure(home: Home, reason: str, log_command: str) -> NotReady:
    return NotReady(
        f"the daemon of {home.root} ended while starting: {reason}", kind="daemon_failed", repair=log_command
    )


def _wait_until_ready(home: Home, deadline: float) -> int:
    while (pid := ready_pid(home)) is None:
        _pause_until(home, deadline)
    return pid


def _pause_until(home: Home, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise NotReady(
            f"the daemon of {home.root} is starting but not ready yet",
            kind="daemon_not_ready",
            repair=["hyp daemon status", _log_command(home)],
        )
    time.sleep(_POLL_SECONDS)


def _log_command(home: Home) -> str:
    """Return the command that shows the daemon's logs."""
    return shlex.join(["tail", "-n", "50", str(log_file.start_log_path(home)), str(log_file.log_path(home))])


def stop_daemon(home: Home, wait: float = STOP_SECONDS, *, force: bool = False, notify: Notify = ignore_notice) -> bool:
    """Stop the daemon. Return False if none was running. Raise Retryable if it does not end in time."""
    pid, supervised = daemon_process.running_daemon(home), None
    if (service := find_installed_supervisor(home, notify)) is not None:
        supervised = service.pid()
        service.stop()  # even if no daemon runs: the supervisor may be restarting one that fails
    if (pid := pid or supervised) is None:
        return False
    if pid != supervised:
        daemon_process.signal_daemon(home, pid, signal.SIGTERM)

    def is_alive() -> bool:
        return daemon_process.running_daemon(home) == pid or (
            service is not None and supervised is not None and service.pid() == supervised
        )

    if _wait_until_ended(home, pid, is_alive, wait, notify):
        return True
    if not force:
        raise Retryable(
            f"the daemon (process {pid}) did not end within {wait:.0f} s{_running_jobs(home)}",
            kind="daemon_not_ending",
            repair=["hyp daemon stop --timeout 600", "hyp daemon stop --force"],
        )
    notify(f"killing the daemon (process {pid}){_running_jobs(home)}")
    daemon_process.signal_daemon(home, pid, signal.SIGKILL)
    if not _wait_until_ended(home, pid, is_alive, _KILLED_SECONDS, ignore_notice):
        raise Retryable(f"the daemon (process {pid}) did not end although it was killed", kind="daemon_not_ending")
    return True


def _wait_until_ended(home: Home, pid: int, is_alive: Callable[[], bool], wait: float, notify: Notify) -> bool:
    started_at = time.monotonic()
    notify_at = started_at + 1.0
    while is_alive():
        now = time.monotonic()
        if now - started_at > wait:
            return False
        if now > notify_at:
            notify(f"waiting for the daemon (process {pid}) to end{_running_jobs(home)}")
            notify_at = now + _NOTIFY_SECONDS
        time.sleep(_POLL_SECONDS)
    return True


def _running_jobs(home: Home) -> str:
    """Return the engine's running jobs as a suffix for a message."""
    try:
        jobs = client.engine_status(home).get("jobs", ())
    except (HypError, OSError):
        return ""
    names = ", ".join(str(job["job"]) for job in jobs)
    return f"; the engine is running {names}" if names else ""


def find_supervisor(home: Home) -> Supervisor:
    if sys.platform == "darwin":
        return supervisor.Launchd(home)
    return supervisor.Systemd(home)


def read_service_file(service: Supervisor) -> bytes | None:
    """Return the contents of the service file, or None if it does not exist."""
    try:
        return service.path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def find_installed_supervisor(home: Home, notify: Notify) -> Supervisor | None:
    """Return the supervisor that the daemon is installed with, or None. Notify the user if it does not answer."""
    service = find_supervisor(home)
    text = read_service_file(service)
    if text is None or service.parse_command(text) is None:
        return None
    if (why := service.unavailable_reason()) is not None:
        notify(f"the daemon is installed as {service.name}, but {service.kind} does not answer ({why}); not using it")
        return None
    return service


@dataclass(frozen=True)
class InstalledService:
    kind: str
    """`systemd` or `launchd`."""
    name: str
    path: Path
    command: tuple[str, ...]
    is_current: bool
    """False if the service starts another installation, or one that no longer exists: install it again."""


@dataclass(frozen=True)
class ServicePlan:
    """What `install` would write, and why it could not."""

    path: Path
    text: str
    change: str
    """`new`, `replace` or `none`."""
    why_not: str | None


def find_installed_service(home: Home) -> InstalledService | None:
    """Return the installed service, read from its file alone; the supervisor is not called."""
    service = find_supervisor(home)
    text = read_service_file(service)
    if text is None or (command := service.parse_command(text)) is None:
        return None
    return InstalledService(service.kind, service.name, service.path, command, supervisor.is_current_command(command))


def plan_service(home: Home) -> ServicePlan:
    """Return what `install` would write. Raise HypError if the existing file is not this home's."""
    service = find_supervisor(home)
    before, text = _own_file(service), service.text()
    change = "none" if before == text else "replace" if before else "new"
    return ServicePlan(service.path, text.decode(errors="replace"), change, service.unavailable_reason())


def install_service(home: Home, notify: Notify = ignore_notice) -> int:
    """Install and start the service, and return the daemon's pid. Raise NotReady if there is no working supervisor."""
    service = find_supervisor(home)
    before, text = _own_file(service), service.text()
    if (why := service.unavailable_reason()) is not None:
        command = shlex.join(supervisor.hyp_command("daemon", "start"))
        # cron treats a bare % as the end of the command
        cron_command = f"HYP_HOME={shlex.quote(str(home.root))} {command}".replace("%", "\\%")
        raise NotReady(
            f"cannot install the daemon here: {why}. Nothing was written. Start it by hand, or add this line to your "
            f"crontab:\n@reboot {cron_command}",
            kind="no_supervisor",
            repair="hyp daemon start",
        )
    check_can_start(home)
    durable_files.make_dir(home.logs)
    if before != text:
        durable_files.make_dir(service.path.parent)
        _before_write()
        durable_files.write_atomic(service.path, text)
        _after_write()
    service.enable()
    running = service.pid()
    started_at = daemon_process.read_daemon_status(home).get("started_at")
    is_older = started_at is None or datetime.fromisoformat(started_at).timestamp() < service.path.stat().st_mtime
    if running is None or running != ready_pid(home) or is_older:
        stop_daemon(home, notify=notify)
    return start_daemon(home, PATIENT_SECONDS, notify)


def uninstall_service(home: Home, notify: Notify = ignore_notice) -> bool:
    """Stop the daemon and remove its service. Return False if it was not installed."""
    service = find_supervisor(home)
    if _own_file(service) is None:
        return False
    stop_daemon(home, notify=notify)
    if service.unavailable_reason() is None:
        service.disable()
    _before_remove()
    durable_files.remove_durably(service.path)
    _after_remove()
    service.clean_up()
    return True


def started_by(home: Home, pid: int) -> str:
    """Return what started the running daemon: `systemd`, `launchd` or `hand`."""
    service = find_installed_supervisor(home, ignore_notice)
    return service.kind if service is not None and service.pid() == pid else "hand"


def service_failure(home: Home) -> str | None:
    """Return what the supervisor reports about a daemon that failed, or None."""
    service = find_installed_supervisor(home, ignore_notice)
    return service.failure() if service is not None else None


def service_hints(home: Home) -> list[str]:
    """Return what a user may not expect of a daemon that runs as a service."""
    messages = []
    if find_supervisor(home).kind == "systemd":
        linger = supervisor.run_command("loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value")
        if linger.returncode == 0 and linger.stdout.strip() != "yes":
            messages.append("the daemon ends when you log out; run `loginctl enable-linger` to keep it running")
    variables = sorted(
        str(value)
        for sink in configuration.load(home).sinks.values()
        for key, value in sink.options.items()
        if key.endswith("_env") and value
    )
    if variables:
        messages.append(
            f"a service does not see the variables of your shell, and the sinks need {', '.join(variables)}; "
            "name a file in the config instead"
        )
    return messages


def _own_file(service: Supervisor) -> bytes | None:
    """Return the contents of the service file, or None. Raise HypError if we did not write it for this home."""
    text = read_service_file(service)
    if text is not None and service.parse_command(text) is None:
        raise HypError(
            f"{service.path} was not written by `hyp daemon install` for this home; move it away, then install again",
            kind="service_not_ours",
        )
    return text
