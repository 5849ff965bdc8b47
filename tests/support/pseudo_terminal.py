"""Run a program on a pseudo-terminal: read its screen as text, and press keys."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from types import TracebackType
from typing import Self

from tests.support.processes import PATIENCE

DOWN, ENTER, ESCAPE, CTRL_C, CTRL_D, CTRL_U = "\x1b[B", "\r", "\x1b", "\x03", "\x04", "\x15"
_CURSOR_QUERY = "\x1b[6n"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|\x1b[()].|[\r\x07]")


class PseudoTerminal:
    """A program whose stdin, stdout and stderr are a terminal that answers queries for the cursor position."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._fd, inner = pty.openpty()
        ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inner)
        self._raw = ""
        self._read_to = 0
        self._answered = 0
        # A read may end within a multi-byte character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def shown(self) -> str:
        return _CONTROL.sub("", self._raw)

    def expect(self, text: str) -> str:
        """Wait until the text appears after the last expected one, and return everything before it."""
        deadline = time.monotonic() + PATIENCE
        while (at := self.shown.find(text, self._read_to)) < 0:
            if not self._read(deadline):
                raise AssertionError(f"the program ended without showing {text!r}:\n{self.shown}")
        before, self._read_to = self.shown[self._read_to : at], at + len(text)
        return before

    def press(self, *keys: str) -> None:
        for key in keys:
            os.write(self._fd, key.encode())

    def end(self) -> int:
        """Wait for the end of the program and return its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self._process.wait(PATIENCE)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"no output for {PATIENCE} s after:\n{self.shown}")
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            # Linux raises an error when the other side is closed.
            return False
        self._raw += self._decoder.decode(data)
        queries = self._raw.count(_CURSOR_QUERY)
        for _ in range(queries - self._answered):
            os.write(self._fd, b"\x1b[1;1R")
        self._answered = queries
        return bool(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._fd)
