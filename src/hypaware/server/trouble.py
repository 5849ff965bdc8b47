"""Storage health: remembers a storage failure for `/readyz` until storing works again."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from hypaware import durable
from hypaware.errors import HypError
from hypaware.state.store import Store

log = logging.getLogger("hypaware.server")

_PROBE = b"storage probe of the HypAware server\n"


class Trouble:
    """Set and cleared by the threads that store batches, read by any thread."""

    def __init__(self) -> None:
        self.problem: str | None = None

    def failed(self, error: BaseException) -> None:
        if self.problem is None:
            log.error("cannot store batches: %s: %s", type(error).__name__, error)
        self.problem = type(error).__name__

    def recovered(self) -> None:
        if self.problem is not None:
            log.info("batches can be stored again")
        self.problem = None

    def probe(self, store: Store, folder: Path, min_free: int) -> None:
        """Test whether storing works. A server that is not ready gets no batches that would test it."""
        path = folder / ".probe"
        try:
            refuse_full_disk(folder, min_free)
            durable.write_file(path, _PROBE)
            durable.remove(path)
            with store.transaction():
                pass
        except (OSError, HypError) as error:
            self.failed(error)
        else:
            self.recovered()


def refuse_full_disk(folder: Path, min_free: int) -> None:
    """Raise OSError if the disk has less than `min_free` bytes left."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < min_free:
        raise OSError(f"the disk of {folder} has less than {min_free} bytes free")
