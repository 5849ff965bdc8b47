"""Deliver rows as files to a folder or an object store: one object per chunk, then the manifest that makes it count.

| module | contents |
|---|---|
| `location` | the configured destination in one canonical spelling |
| `manifest` | names and content of manifests |
| `folder`, `object_store` | the two kinds of destination, as `BlobStore` |
| `sink` | the order of the steps |
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.blob.location import parse_location


def _address(settings: SinkSettings) -> str:
    return parse_location(settings.options).address


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.blob.sink import BlobSink

    return BlobSink.from_settings(settings)


BLOB = SinkType("blob", "files in a folder or an object store", _address, _make)
