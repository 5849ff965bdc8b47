"""Where the files of a lake lie, as its tables name them: `file:/x`, `file:///x` or `/x`, never percent-encoded.

Every table lies in the warehouse of its home, so the part of a path from `lake/warehouse` on says where in the home a
file lies, whatever the home was called, or through which link it was reached, when the path was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake.metadata import local_path

_IN_HOME = "/lake/warehouse"
_SCHEME = re.compile(r"^(?:([a-z][a-z0-9+.-]*):)?(//(?=/))?", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """A home as its tables should name it."""

    root: Path

    @classmethod
    def of(cls, home: Home) -> Place:
        return cls(home.root.resolve())

    def is_foreign(self, location: str) -> bool:
        return self.here(location) != location

    def here(self, location: str) -> str:
        """The same file in this home, written the same way. Files that lie in no folder are nobody's business."""
        scheme, path = _split(location)
        if path is None:
            return location
        if path.is_relative_to(f"{self.root}{_IN_HOME}"):
            return location
        _, found, within = f"{path}/".rpartition(f"{_IN_HOME}/")
        if not found:
            raise LakeError(
                f"the lake of {self.root} names {location}, which lies in no home: it cannot be told where that is now",
                kind="lake_foreign_file",
            )
        return f"{scheme}{self.root}{_IN_HOME}/{within}".rstrip("/")

    def file(self, location: str) -> Path:
        return local_path(self.here(location))


def _split(location: str) -> tuple[str, Path | None]:
    """How the location begins, and its path; None for one that is not of this machine."""
    begin = _SCHEME.match(location)
    assert begin is not None
    if (begin[1] or "file").lower() != "file":
        return "", None
    return begin[0], local_path(location)
