"""What keeps the server from storing, if anything does: told by `/readyz` until storing has worked again."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hypaware import durable
from hypaware.errors import HypError
from hypaware.state.store import Store

log = logging.getLogger("hypaware.server")

_PROBE = b"a server looks whether it can store\n"


class Trouble:
    """Set and cleared by the threads that store, read by any."""

    def __init__(self) -> None:
        self.now: str | None = None

    def met(self, error: BaseException) -> None:
        if self.now is None:
            log.error("batches cannot be stored: %s: %s", type(error).__name__, error)
        self.now = type(error).__name__

    def over(self) -> None:
        if self.now is not None:
            log.info("batches are stored again")
        self.now = None

    def look_again(self, store: Store, folder: Path, keep_free: int) -> None:
        """Nobody sends anything to a server that is not ready, so somebody has to try."""
        probe = folder / ".probe"
        try:
            refuse_full_disk(folder, keep_free)
            durable.write_file(probe, _PROBE)
            durable.remove(probe)
            with store.transaction():
                pass
        except (OSError, HypError) as error:
            self.met(error)
        else:
            self.over()


def refuse_full_disk(folder: Path, keep_free: int) -> None:
    found = os.statvfs(folder)
    if found.f_bavail * found.f_frsize < keep_free:
        raise OSError(f"less than {keep_free} bytes are free below {folder}")
