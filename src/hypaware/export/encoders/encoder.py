"""The interface of an encoder: it writes a table of rows as one object."""

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
    """Suffix of object names, without a leading dot: `parquet`, `jsonl.gz`."""
    content_type: str
    write: Callable[[pa.Table, BinaryIO], None]
    """Must write the same bytes for the same rows."""
