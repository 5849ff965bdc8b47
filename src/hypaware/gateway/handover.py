"""Handover of the listening socket, so that the address that clients call outlives the daemon.

A small process, the fallback, keeps the address open as long as a client is attached. The daemon requests the socket
over `run/fallback.sock` and accepts connections itself. The connection of that request stays open as long as the daemon
lives. When it closes, the fallback accepts in the daemon's place, including requests that were already queued, and
forwards them to the provider without recording them.

While no client is attached to the home, the fallback is not needed: `open_address` then opens the address itself, and
`HeldSocket.ensure_fallback` hands it over when the first client is attached.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from hypaware import __version__
from hypaware.errors import NotReady
from hypaware.home import Home, durable_files, locks

HEALTH_PATH = "/_hypaware/health"
"""The gateway and the fallback answer `GET` of this path themselves, with `health`."""
_START_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.01
_STANDBY_SECONDS = 5.0
_SOCKET_PATH_MAX = 100
_BACKLOG = 1024
_PORTS_TRIED = 50
# Lower ports are reserved for the system.
_LOWEST_PORT = 1024
_HIGHEST_PORT = 65535
_DEFAULT_PORT = 18530
SERVER_PORT = 18522
"""The default port of `hyp server run`: never suggested for the gateway."""


def control_socket_path(home: Home) -> Path:
    path = home.run / "fallback.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        return path
    digest = hashlib.sha256(os.fsencode(home.root)).hexdigest()[:16]
    return Path("/tmp") / f"hyp-{os.getuid()}-{digest}" / "fallback.sock"


def fallback_lock_path(home: Home) -> Path:
    return home.run / "fallback.lock"


def fallback_log_path(home: Home) -> Path:
    return home.logs / "fallback.log"


def describe_health(home: Home, role: str) -> dict[str, object]:
    """Return which role answers (`gateway` or `fallback`) and for which home, without revealing the home's path."""
    return {"hypaware": role, "pid": os.getpid(), "home": home_fingerprint(home)}


def home_fingerprint(home: Home) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(home.root))).hexdigest()[:16]


class HeldSocket:
    """The listening socket, held until it is released."""

    def __init__(self, home: Home, listen: str, listener: socket.socket, control: socket.socket | None) -> None:
        self._home = home
        self._listen = listen
        self.socket = listener
        self._control = control

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.socket.getsockname()[:2]
        return str(host), int(port)

    def ensure_fallback(self) -> bool:
        """Start the fallback if a client is attached and none is running; return whether it was started."""
        if self._control is None:
            from hypaware.gateway import routes

            if not routes.has_attached_client(self._home):
                return False
        elif _is_open(self._control):
            return False
        else:
            self._control.close()
        self._control = connect_fallback(self._home)
        socket.send_fds(self._control, [_encode_request("give", self._listen)], [self.socket.fileno()])
        _receive(self._control)
        return True

    def release(self) -> None:
        """Close the socket; the fallback, if there is one, accepts from now on."""
        self.socket.close()
        if self._control is not None:
            self._control.close()

    def __enter__(self) -> HeldSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def open_address(home: Home, listen: str) -> HeldSocket:
    """Acquire the socket if a client is attached or the fallback runs; otherwise open the address directly."""
    from hypaware.gateway import routes

    if not routes.has_attached_client(home):
        control = _connect_control(home)
        if control is None:
            try:
                return HeldSocket(home, listen, bind_listener(listen), None)
            except OSError as error:
                raise _address_error(listen, error.strerror) from error
        control.close()
    return acquire_socket(home, listen)


def bind_listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, int(port)))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def bind_page_listener(listen: str) -> socket.socket:
    """Listen on the page's address. If it is the default one and another home uses it, listen on a free port."""
    from hypaware.config import PageConfig  # the fallback, which uses this module, has to start quickly

    try:
        return bind_listener(listen)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or listen != PageConfig().listen:
            raise
    return bind_listener(f"{listen.rpartition(':')[0]}:0")


def _address_error(listen: str, reason: object) -> NotReady:
    return NotReady(f"the gateway cannot listen on {listen}: {reason}", kind="gateway_address")


def acquire_socket(home: Home, listen: str) -> HeldSocket:
    """Get the listening socket for the address from the home's fallback; start the fallback if it is not running."""
    control = connect_fallback(home)
    try:
        control.sendall(_encode_request("take", listen))
        answer, descriptors = _receive(control)
        if "error" in answer or not descriptors:
            raise _address_error(listen, answer.get("error", "no answer"))
    except BaseException:
        control.close()
        raise
    held = HeldSocket(home, listen, socket.socket(fileno=descriptors[0]), control)
    if answer.get("version") != __version__:
        # An older installation has left it running. We hold the socket, so callers do not notice the change.
        control.sendall(_encode_request("leave", listen))
        control.settimeout(_ANSWER_SECONDS)
        with suppress(OSError):
            control.recv(1)
        held.ensure_fallback()
    return held


def _is_open(control: socket.socket) -> bool:
    try:
        control.setblocking(False)
        return bool(control.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _encode_request(action: str, address: str) -> bytes:
    return json.dumps({"wants": action, "address": address}).encode() + b"\n"


def connect_fallback(home: Home) -> socket.socket:
    """Return a connection to the home's fallback; start the fallback if it is not running."""
    deadline = time.monotonic() + _START_SECONDS
    while (control := _connect_control(home)) is None:
        # A fallback that is exiting still holds its lock but no longer accepts connections.
        if not start_fallback(home) or time.monotonic() > deadline:
            raise NotReady(
                f"the gateway's fallback process did not start; see its log {fallback_log_path(home)}",
                kind="fallback_not_running",
            )
        time.sleep(_POLL_SECONDS)
    return control


def wait_for_fallback(home: Home) -> bool:
    """Wait until the fallback runs, which the daemon starts within a second of the first attach."""
    deadline = time.monotonic() + _STANDBY_SECONDS
    while not locks.is_locked(fallback_lock_path(home)):
        if time.monotonic() > deadline:
            return False
        # Rarely: the check holds the lock for a moment, and a starting fallback would think that another one runs.
        time.sleep(5 * _POLL_SECONDS)
    return True


def start_fallback(home: Home, listen: str = "") -> bool:
    """Start the fallback as an independent process; return whether one of them serves now."""
    for folder in (home.run, home.logs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(fallback_log_path(home), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "hypaware.gateway.fallback", str(home.root), *([listen] if listen else [])],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            cwd="/",
            start_new_session=True,
            timeout=_START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        os.close(fd)
    return result.returncode == 0


def ensure_listener(home: Home, base_url: str) -> bool:
    """Start the fallback if nothing listens at the address of a client; return whether it was started."""
    parts = urlsplit(base_url)
    if not parts.hostname or not parts.port:
        return False
    with suppress(OSError), socket.create_connection((parts.hostname, parts.port), timeout=0.2):
        return False
    return start_fallback(home, parts.netloc)


def require_own_folder(home: Home) -> None:
    """Raise NotReady if the control socket is not in the home, and others may have created its folder."""
    folder = control_socket_path(home).parent
    if folder != home.run:
        durable_files.require_private_folder(folder, "the fallback's socket", "fallback_socket_unsafe")


def _connect_control(home: Home) -> socket.socket | None:
    try:
        require_own_folder(home)
    except FileNotFoundError:
        return None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.settimeout(_ANSWER_SECONDS)
    try:
        control.connect(os.fspath(control_socket_path(home)))
    except OSError:
        control.close()
        return None
    return control


def _receive(control: socket.socket) -> tuple[dict[str, str], list[int]]:
    data, descriptors, _, _ = socket.recv_fds(control, 4096, 4)
    while not data.endswith(b"\n"):
        chunk = control.recv(4096)
        if not chunk:
            break
        data += chunk
    try:
        answer = json.loads(data)
    except ValueError:
        answer = {}
    return (answer if isinstance(answer, dict) else {}), descriptors


def bind_problem(listen: str) -> str | None:
    """Return why `host:port` cannot be bound, or None if it is free."""
    host, _, port = listen.rpartition(":")
    bare = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in bare else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bare or "127.0.0.1", int(port)))
        except (OSError, ValueError, OverflowError) as error:
            return str(error)
    return None


def find_free_address(listen: str) -> str:
    """Return the address of the next free port on the host of `listen`, or on 127.0.0.1 if that host is unusable."""
    host, _, port = listen.rpartition(":")
    first = (
        int(port) + 1
        if port.isdecimal() and _LOWEST_PORT <= int(port) <= _HIGHEST_PORT - _PORTS_TRIED
        else _DEFAULT_PORT
    )
    ports = [port for port in range(first, first + _PORTS_TRIED) if port != SERVER_PORT]
    candidates = [f"{at}:{port}" for at in dict.fromkeys((host, "127.0.0.1")) for port in ports]
    return next((address for address in candidates if bind_problem(address) is None), candidates[0])


def gateway_url(listen: str) -> str:
    """Return the URL for `gateway.listen`; a wildcard becomes 127.0.0.1. Raise NotReady without a fixed port."""
    host, _, port = listen.rpartition(":")
    if int(port) == 0:
        raise NotReady(
            f"gateway.listen is {listen}, which has no fixed port, but a client needs one. Nothing was written",
            kind="gateway_address",
            repair=f"hyp config set gateway.listen {find_free_address(listen)}",
        )
    return f"http://127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "localhost") else f"http://{listen}"


def gateway_unreachable(home: Home, listen: str, reason: str | None = None) -> NotReady:
    """Return the error; `reason` is the gateway's own explanation, if it has one."""
    explanation = reason or f"another program may use the port (see {fallback_log_path(home)})"
    return NotReady(
        f"this home's gateway does not answer at {listen}: {explanation}. Nothing was written",
        kind="gateway_address",
        repair=f"hyp config set gateway.listen {find_free_address(listen)}",
    )
