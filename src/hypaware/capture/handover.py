"""The address that clients call outlives the daemon: how the listening socket passes from hand to hand.

A small process, `fallback`, opens the address and keeps it open for as long as a client points there. The daemon asks
it for the socket over `run/fallback.sock` and accepts on it itself: no request takes a detour. The connection over
which it asked stays open for the daemon's life. When that ends, in whatever way, `fallback` hears it at once, accepts
in the daemon's place and passes requests straight to the provider, unrecorded; those that were waiting are served too.

    with handover.take(home, "127.0.0.1:18521") as taken:
        … web.SockSite(runner, taken.socket) …
        taken.give_back()       # as soon as no more is accepted; at the latest the end of the process does it

While no client points at the home, nobody needs that process: `open_address` then opens the address itself, and `tend`
hands it over when the first client is attached.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from hypaware import __version__, lock_file
from hypaware.capture import own_upstreams
from hypaware.errors import NotReady
from hypaware.home import Home

HEALTH = "/_hypaware/health"
"""`GET` of it is answered on the spot with `health`, by the gateway as by `fallback`; it goes to no provider."""
_START_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.01
_STANDBY_SECONDS = 5.0
_SOCKET_PATH_MAX = 100
_BACKLOG = 1024


def socket_path(home: Home) -> Path:
    path = home.run / "fallback.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_MAX:
        return path
    short = hashlib.sha256(os.fsencode(home.root)).hexdigest()[:16]
    return Path("/tmp") / f"hyp-{os.getuid()}-{short}" / "fallback.sock"


def lock_path(home: Home) -> Path:
    return home.run / "fallback.lock"


def log_path(home: Home) -> Path:
    return home.logs / "fallback.log"


def health(home: Home, role: str) -> dict[str, object]:
    """Who answers (`gateway` or `fallback`), and for which home; other users of the machine need not learn its path."""
    return {"hypaware": role, "pid": os.getpid(), "home": home_mark(home)}


def home_mark(home: Home) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(home.root))).hexdigest()[:16]


class Taken:
    """The listening socket, ours until it is given back."""

    def __init__(self, home: Home, listen: str, listener: socket.socket, control: socket.socket | None) -> None:
        self._home = home
        self._listen = listen
        self.socket = listener
        self._control = control

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.socket.getsockname()[:2]
        return str(host), int(port)

    def tend(self) -> bool:
        """Sees to it that the address would outlive us, if a client points there. Whether `fallback` was started."""
        if self._control is None:
            if not own_upstreams.attached(self._home):
                return False
        elif _is_open(self._control):
            return False
        else:
            self._control.close()
        self._control = ensure(self._home)
        socket.send_fds(self._control, [_request("give", self._listen)], [self.socket.fileno()])
        _received(self._control)
        return True

    def renew(self) -> None:
        """Puts one of our own version in the place of the `fallback` that runs."""
        if self._control is None:
            return
        self._control.sendall(_request("leave", self._listen))
        self._control.settimeout(_ANSWER_SECONDS)
        with suppress(OSError):
            self._control.recv(1)
        self.tend()

    def give_back(self) -> None:
        """`fallback`, if it is needed, accepts from now on."""
        self.socket.close()
        if self._control is not None:
            self._control.close()

    def __enter__(self) -> Taken:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.give_back()


def open_address(home: Home, listen: str) -> Taken:
    """As `take`, where a client points at the home or its `fallback` runs; else by ourselves."""
    if not own_upstreams.attached(home):
        control = _connected(home)
        if control is None:
            try:
                return Taken(home, listen, bound(listen), None)
            except OSError as error:
                raise _not_ours(listen, error.strerror) from error
        control.close()
    return take(home, listen)


def bound(address: str) -> socket.socket:
    """A socket that listens there."""
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


def _not_ours(listen: str, why: object) -> NotReady:
    return NotReady(f"the gateway cannot listen on {listen}: {why}", kind="gateway_address")


def take(home: Home, listen: str) -> Taken:
    """The socket that listens at the address, from the home's `fallback`, which is started if it does not run."""
    control = ensure(home)
    try:
        control.sendall(_request("take", listen))
        answer, descriptors = _received(control)
        if "error" in answer or not descriptors:
            raise _not_ours(listen, answer.get("error", "no answer"))
    except BaseException:
        control.close()
        raise
    taken = Taken(home, listen, socket.socket(fileno=descriptors[0]), control)
    if answer.get("version") != __version__:
        # One that an older installation has left. We hold the socket: nobody who calls notices the change.
        taken.renew()
    return taken


def _is_open(control: socket.socket) -> bool:
    """Whether the other end is still there."""
    try:
        control.setblocking(False)
        return bool(control.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _request(wants: str, address: str) -> bytes:
    return json.dumps({"wants": wants, "address": address}).encode() + b"\n"


def ensure(home: Home) -> socket.socket:
    """A connection to the home's `fallback`; starts it where there is none."""
    deadline = time.monotonic() + _START_SECONDS
    while (control := _connected(home)) is None:
        # One that is just ending still has its lock, and then nobody answers.
        if not start(home) or time.monotonic() > deadline:
            raise NotReady(
                f"the process that keeps the gateway's address open did not start; its log is {log_path(home)}",
                kind="fallback_not_running",
            )
        time.sleep(_POLL_SECONDS)
    return control


def stands_by(home: Home, seconds: float = _STANDBY_SECONDS) -> bool:
    """Waits until somebody would serve should the daemon die: it notices a client that was attached within a second."""
    deadline = time.monotonic() + seconds
    while not lock_file.is_taken(lock_path(home)):
        if time.monotonic() > deadline:
            return False
        # Seldom: a look holds the lock for a moment, and whoever starts then would think that another one runs.
        time.sleep(5 * _POLL_SECONDS)
    return True


def start(home: Home, listen: str = "") -> bool:
    """On its own: it outlives whoever started it. Returns when it serves, or when another one does; False if not."""
    for folder in (home.run, home.logs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(log_path(home), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hypaware.capture.fallback", str(home.root), *([listen] if listen else [])],
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
    return done.returncode == 0


def wake(home: Home, base_url: str) -> bool:
    """Starts `fallback` if nobody listens where a client is about to call. Whether it was started."""
    parts = urlsplit(base_url)
    if not parts.hostname or not parts.port:
        return False
    with suppress(OSError), socket.create_connection((parts.hostname, parts.port), timeout=0.2):
        return False
    return start(home, parts.netloc)


def _connected(home: Home) -> socket.socket | None:
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.settimeout(_ANSWER_SECONDS)
    try:
        control.connect(os.fspath(socket_path(home)))
    except OSError:
        control.close()
        return None
    return control


def _received(control: socket.socket) -> tuple[dict[str, str], list[int]]:
    data, descriptors, _, _ = socket.recv_fds(control, 4096, 4)
    while not data.endswith(b"\n"):
        more = control.recv(4096)
        if not more:
            break
        data += more
    try:
        answer = json.loads(data)
    except ValueError:
        answer = {}
    return (answer if isinstance(answer, dict) else {}), descriptors
