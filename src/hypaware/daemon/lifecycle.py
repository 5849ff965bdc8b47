"""Start and stop a home's daemon in the background.

A background daemon has its own session, `/` as its working directory and nothing on stdin. Its log lines go to the
rotating log; its stdout and stderr go to `logs/daemon-start.log`, which therefore holds output from before the log was
opened and from crashes that could not be logged.

A daemon is ready when it holds its lock and has written its status file (`run/daemon.json`). The lock on
`run/daemon-start.lock` serialises concurrent starts: the second one finds the daemon of the first.

A daemon that a supervisor started is stopped through the supervisor, which would otherwise restart it. It is killed
only if the user passes `--force`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hypaware import config as configuration
from hypaware.daemon import log_file, supervisor
from hypaware.daemon.supervisor import Notify, Supervisor, ignore_notice
from hypaware.engine import client
from hypaware.errors import HypError, NotReady, Retryable
from hypaware.home import Home, daemon_process, durable_files, locks
from hypaware.state.home_opener import read_identity

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
    with _start_lock(home, deadline):
        if (pid := ready_pid(home)) is not None:
            return pid
        if daemon_process.running_daemon(home) is not None:
            return _wait_until_ready(home, deadline)
        if (service := find_installed_supervisor(home, notify)) is not None:
            return _start_supervised(home, service, deadline)
        return _start_detached(home, deadline)


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
    process = DetachedDaemon(home)
    while (pid := ready_pid(home)) is None:
        if (reason := process.exit_reason()) is not None:
            if daemon_process.running_daemon(home) is not None:
                return _wait_until_ready(home, deadline)  # a daemon was started by hand at the same moment
            raise _start_failure(
                home, f"{reason}\n{process.output() or log_file.read_tail(log_file.log_path(home))}", _log_command(home)
            )
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


@contextmanager
def _start_lock(home: Home, deadline: float) -> Iterator[None]:
    path = home.run / "daemon-start.lock"
    while (lock := locks.try_lock(path)) is None:
        _pause_until(home, deadline)
    try:
        yield
    finally:
        locks.unlock(lock)


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


class DetachedDaemon:
    def __init__(self, home: Home) -> None:
        """Start the process. The caller holds the start lock, so that only one process rotates the start log."""
        log = log_file.start_log_path(home)
        durable_files.make_dir(log.parent)
        if log.exists() and log.stat().st_size > _START_LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._home = home
        self._log_start = os.fstat(fd).st_size
        try:
            self._process = subprocess.Popen(
                supervisor.hyp_command("daemon", "run", "--quiet"),
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                cwd="/",
                env=supervisor.background_environment(home),
                start_new_session=True,
            )
        finally:
            os.close(fd)
        self.pid = self._process.pid
        # Reap the process when it ends, so that a long-lived caller does not keep a zombie.
        threading.Thread(target=self._process.wait, name="daemon reaper", daemon=True).start()

    def exit_reason(self) -> str | None:
        """Return how the process ended, as text, or None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def output(self) -> str:
        return log_file.read_tail(log_file.start_log_path(self._home), self._log_start)
