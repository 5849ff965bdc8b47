"""The operations that the blob sink needs of a destination."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from hypaware.export.sinks.blob.address import FolderPlace, place_of


class Store(Protocol):
    """The operations that the blob sink needs of a destination. Keys are relative to the destination's prefix.

    Every operation raises Denied, Busy or Unreachable if the destination fails; the message names the place.
    """

    async def open(self) -> None:
        """Connect to the destination."""
        ...

    async def write(self, key: str, data: memoryview, content_type: str) -> str:
        """Write or replace an object. It is durable when this returns, and never visible in part.

        Returns the version of the object, which changes whenever it is written with other bytes; see `version`.
        """
        ...

    async def create(self, key: str, data: bytes, content_type: str) -> bool:
        """Create an object, durable when this returns. Returns False, without a change, if one exists."""
        ...

    async def read(self, key: str) -> bytes | None: ...

    async def version(self, key: str) -> str | None: ...

    async def remove(self, key: str) -> None: ...

    def names(self, folder: str, after: str) -> AsyncIterator[str]:
        """Yield the names in a folder that sort after the given one, in any order; none if the folder is missing."""
        ...


def store_of(options: Mapping[str, Any]) -> Store:
    location = place_of(options)
    if isinstance(location, FolderPlace):
        from hypaware.export.sinks.blob.folder import Folder

        return Folder(location)
    from hypaware.export.sinks.blob.bucket import Bucket

    return Bucket(location, options)
