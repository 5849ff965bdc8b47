"""Locations of lake files as tables spell them: `file:/x`, `file:///x` or `/x`, never percent-encoded.

Every table is in the warehouse of its home. The part of a path from `lake/warehouse` on is therefore relative to the
home, whatever the home's path was when the location was written.
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
    """Translates locations to the current path of a home."""

    root: Path

    @classmethod
    def of_home(cls, home: Home) -> Place:
        return cls(home.root.resolve())

    def is_foreign(self, location: str) -> bool:
        return self.localize(location) != location

    def localize(self, location: str) -> str:
        """Return the location of the same file in this home. Locations outside the file system stay unchanged."""
        scheme, path = _split(location)
        if path is None:
            return location
        if path.is_relative_to(f"{self.root}{_IN_HOME}"):
            return location
        _, found, relative = f"{path}/".rpartition(f"{_IN_HOME}/")
        if not found:
            raise LakeError(
                f"the lake of {self.root} references {location}, which is outside the warehouse of any home",
                kind="lake_foreign_file",
            )
        return f"{scheme}{self.root}{_IN_HOME}/{relative}".rstrip("/")

    def local_file(self, location: str) -> Path:
        return local_path(self.localize(location))


def _split(location: str) -> tuple[str, Path | None]:
    """Split a location into scheme and path. The path is None for a location that is not a local file."""
    prefix = _SCHEME.match(location)
    assert prefix is not None
    if (prefix[1] or "file").lower() != "file":
        return "", None
    return prefix[0], local_path(location)
