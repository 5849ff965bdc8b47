"""What an encoder is: a table of rows to the bytes of one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Encoder:
    name: str
    extension: str
    """Of the object's name, without a dot at its beginning: `parquet`, `jsonl.gz`."""
    content_type: str
    write: Callable[[pa.Table, BinaryIO], None]
    """The same rows give the same bytes."""
