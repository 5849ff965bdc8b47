"""Deliver rows as files to a folder or an object store: one object per chunk, then the manifest that makes it count.

| module | contents |
|---|---|
| `address` | the configured destination in one canonical spelling |
| `keys` | names of objects and manifests |
| `manifest` | the content of a manifest |
| `store` | the operations that a destination must support; `folder` and `bucket` implement them |
| `sink` | the order of the steps |
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.blob.address import place_of


def _address(settings: SinkSettings) -> str:
    return place_of(settings.options).address


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.blob.sink import BlobSink

    return BlobSink.from_settings(settings)


BLOB = SinkType("blob", "files in a folder or an object store", _address, _make)
