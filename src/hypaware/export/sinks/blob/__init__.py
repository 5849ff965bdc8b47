"""Rows as files in a folder or an object store: an object for each chunk, then the manifest that makes it count.

| module | owns |
|---|---|
| `address` | what the config calls the destination, in one spelling |
| `keys` | names of objects and manifests |
| `manifest` | what a manifest says |
| `store` | what a destination must be able to do; `folder` and `bucket` can |
| `sink` | the order of the steps, and what the destination has |
"""

from __future__ import annotations

from hypaware.export.sink import Sink, SinkSettings, SinkType
from hypaware.export.sinks.blob.address import place_of


def _address(settings: SinkSettings) -> str:
    return place_of(settings.options).address


def _make(settings: SinkSettings) -> Sink:
    from hypaware.export.sinks.blob.sink import BlobSink

    return BlobSink.of(settings)


BLOB = SinkType("blob", "as files to a folder or an object store", _address, _make)
