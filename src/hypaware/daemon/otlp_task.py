"""Run the OTLP receiver inside the daemon: open it, follow the config, and close it.

The receiver is off unless `otlp.listen` names an address, and until then nothing of it is imported. An address that
cannot be opened, or a missing extra, is logged once and retried, and delays nothing else. The task has a spool of its
own. Shutdown runs in this order: release the address, answer open requests, seal the spool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from hypaware import extras
from hypaware.config import Config
from hypaware.daemon.status_file import StatusFile
from hypaware.engine.background import RetryTimer, TaskClock, run_in_thread
from hypaware.errors import HypError
from hypaware.gateway.handover import bind_listener
from hypaware.home import Home
from hypaware.spool.writer import Spool

if TYPE_CHECKING:
    from hypaware.otlp.receiver import OtlpReceiver
    from hypaware.otlp.writer import TelemetryWriter

log = logging.getLogger("hypaware.daemon")

GRACE_SECONDS = 5.0
_POLL_SECONDS = 1.0


class OtlpTask:
    def __init__(self, home: Home, config: Callable[[], Config], status: StatusFile, clock: TaskClock) -> None:
        self._home = home
        self._config = config
        self._status = status
        self._applied_config = config()
        self._spool: Spool | None = None
        self._writer: TelemetryWriter | None = None
        self._receiver: OtlpReceiver | None = None
        self._listen = self._address = ""
        """The address in the config, whose port may be 0, and where the receiver listens."""
        self._open_retry = RetryTimer(clock)
        self._wakeup = asyncio.Event()
        self._error: str | None = None

    async def begin(self) -> None:
        """Open the address, so that the first status names it. The status file is not written yet."""
        await self._check()

    async def run(self) -> None:
        """Serve until the task is cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._wakeup.wait()
            self._wakeup.clear()
            await self._check()
            self._status.write()

    def reload(self) -> None:
        self._open_retry.reset()
        self._wakeup.set()

    async def close(self) -> None:
        """Shut down after `run` was cancelled. Returns when every stored row is sealed."""
        await self._close_receiver()
        if self._spool is not None:
            await run_in_thread(self._spool.close, "otlp")
        self._report()

    async def _check(self) -> None:
        config = self._config()
        try:
            await self._apply(config)
        except Exception as error:
            reason = error.message if isinstance(error, HypError) else getattr(error, "strerror", None) or str(error)
            if self._error != reason:
                log.warning("the OTLP receiver cannot listen on %s: %s; retrying", config.otlp.listen, reason)
            self._error = reason or type(error).__name__
        else:
            if self._receiver is not None or not config.otlp.listen:
                self._error = None
        self._report()

    async def _apply(self, config: Config) -> None:
        listen = config.otlp.listen
        if self._receiver is not None and self._listen != listen:
            log.info("the OTLP receiver on %s is closed", self._address)
            await self._close_receiver()
        if self._writer is not None and config is not self._applied_config:
            self._writer.update_config(config)
        self._applied_config = config
        if not listen or self._receiver is not None or not self._open_retry.is_due():
            return
        with self._open_retry:
            extras.require("otlp")
            if self._writer is None:
                self._writer = await run_in_thread(lambda: self._load_writer(config), "otlp")
            # Imported here: most daemons do not receive telemetry.
            from hypaware.otlp.receiver import OtlpReceiver

            listener = bind_listener(listen)
            receiver = OtlpReceiver(listener, self._writer)
            host, port = listener.getsockname()[:2]
            await receiver.start()
        self._receiver, self._listen = receiver, listen
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        log.info("the OTLP receiver listens on %s", self._address)

    def _load_writer(self, config: Config) -> TelemetryWriter:
        from hypaware.otlp.writer import TelemetryWriter

        self._spool = self._spool or Spool(self._home, make=False)
        return TelemetryWriter(self._spool, config)

    async def _close_receiver(self) -> None:
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            await receiver.stop(GRACE_SECONDS)

    def _report(self) -> None:
        listen = self._config().otlp.listen
        counts = asdict(self._writer.counts) if self._writer else {}
        if self._receiver is not None:
            counts["last_error"] = self._receiver.last_error
        state = "listening" if self._receiver else "down" if listen else "off"
        self._status.note("otlp", state=state, listen=self._address if self._receiver else listen, error=self._error)
        self._status.note("otlp", **counts)
