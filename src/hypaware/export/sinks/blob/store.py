"""What a destination must be able to do: the seam under the blob sink. Keys are relative to the destination's prefix.

Every call raises Denied, Busy or Unreachable for trouble with the destination, and says which place it is about.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from hypaware.export.sinks.blob.address import FolderPlace, place_of


class Store(Protocol):
    async def open(self) -> None:
        """Reaches the destination, or says why not."""
        ...

    async def write(self, key: str, data: memoryview, content_type: str) -> str:
        """Durable when it returns, and whole at any moment before; what was there is replaced.

        The result changes whenever the object is written again with other bytes; see `version`.
        """
        ...

    async def create(self, key: str, data: bytes, content_type: str) -> bool:
        """Durable when it returns; False, and nothing is changed, where something is there already."""
        ...

    async def read(self, key: str) -> bytes | None: ...

    async def version(self, key: str) -> str | None: ...

    async def remove(self, key: str) -> None: ...

    def names(self, folder: str, after: str) -> AsyncIterator[str]:
        """The names in a folder that sort after the given one, in any order; none where there is no such folder."""
        ...


def store_of(options: Mapping[str, Any]) -> Store:
    place = place_of(options)
    if isinstance(place, FolderPlace):
        from hypaware.export.sinks.blob.folder import Folder

        return Folder(place)
    from hypaware.export.sinks.blob.bucket import Bucket

    return Bucket(place, options)
