"""Decompression of bodies: gzip, deflate (with a zlib frame or raw), br and zstd, also several in sequence.

Decompression runs in small steps, so only the last layer is ever complete in memory, and it stops at
`DecompressionLimits`: a decompression bomb costs no more than the limit. A truncated stream yields the data before the
truncation.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import brotli  # type: ignore[import-untyped]
from backports import zstd

_STEP = 1 << 16
_MAX_LAYERS = 4
# Larger windows are rejected, as browsers do.
_ZSTD_WINDOW_LOG = 23
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Bounds:
    size: int = 32 << 20
    """The largest request that providers accept. Reading it takes twice as much memory."""
    ratio: int = 1000
    """Largest ratio of decompressed to compressed size, checked above `ratio_from`; text never reaches it."""
    ratio_from: int = 4 << 20


@dataclass(frozen=True)
class Unpacked:
    data: bytes | bytearray
    """The decompressed data, or the part before an error; empty if it exceeds the limits."""
    problem: str | None = None


class _Broken(Exception):
    """The compressed data is invalid or truncated."""


Blocks = Iterable[bytes]
_Layer = Callable[[Blocks], Iterator[bytes]]


def unpack(blocks: Blocks, encodings: Sequence[str], limits: Bounds, size: int = 0) -> Unpacked:
    """Decompress blocks.

    `encodings` is ordered as in the header: the last encoding was applied last and is removed first. Blocks whose total
    `size` is known and already too large are not read.
    """
    layers = [name for name in encodings if name not in ("identity", "")]
    unknown = [name for name in layers if name not in _LAYERS]
    if unknown:
        return Unpacked(b"", f"encoding {unknown[0][:40]} is unknown")
    if len(layers) > _MAX_LAYERS:
        return Unpacked(b"", f"{len(layers)} encodings, one in the other")
    if size > limits.size:
        return Unpacked(b"", f"larger than {limits.size >> 20} MiB")
    counted = _Counted(blocks)
    stream: Iterator[bytes] = iter(counted)
    for name in reversed(layers):
        stream = _LAYERS[name](stream)
    data = bytearray()
    try:
        for chunk in stream:
            data += chunk
            if len(data) > limits.size:
                return Unpacked(b"", f"larger than {limits.size >> 20} MiB")
            if layers and len(data) > max(limits.ratio_from, limits.ratio * counted.size):
                return Unpacked(b"", f"unpacks to more than {limits.ratio} times its size")
    except _Broken as broken:
        return Unpacked(data, str(broken))
    return Unpacked(data)


class _Counted:
    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self.size += len(block)
            # A block may be an entire body.
            for at in range(0, len(block), _STEP):
                yield block[at : at + _STEP]


def _gzip(blocks: Blocks) -> Iterator[bytes]:
    return _zlib(blocks, lambda _first: _GZIP_OR_ZLIB, "gzip")


def _deflate(blocks: Blocks) -> Iterator[bytes]:
    return _zlib(blocks, lambda first: zlib.MAX_WBITS if _has_zlib_frame(first) else -zlib.MAX_WBITS, "deflate")


def _has_zlib_frame(first: bytes) -> bool:
    return first[0] & 0x0F == 8 and (len(first) < 2 or int.from_bytes(first[:2], "big") % 31 == 0)


def _zlib(blocks: Blocks, bits: Callable[[bytes], int], name: str) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        rest = block
        while rest:
            stream = stream or zlib.decompressobj(bits(rest))
            full = False
            # A full step may leave output behind in the decompressor.
            while rest or full:
                try:
                    chunk = stream.decompress(rest, _STEP)
                except zlib.error as error:
                    raise _Broken(f"{name}: {_words(error)}") from None
                yield chunk
                rest, full = stream.unconsumed_tail, len(chunk) == _STEP
                if stream.eof:
                    break
            if stream.eof:
                rest, stream = stream.unused_data, None
                if not rest.startswith(_GZIP_MAGIC[: len(rest)]):
                    # The rest is padding after the last member.
                    return
    if stream is not None:
        raise _Broken(f"{name}: ends early")


def _br(blocks: Blocks) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        stream = stream or brotli.Decompressor()
        try:
            chunk = stream.process(block, output_buffer_limit=_STEP)
            while chunk or not stream.can_accept_more_data():
                yield chunk
                chunk = stream.process(b"", output_buffer_limit=_STEP)
        except brotli.error as error:
            raise _Broken(f"br: {_words(error)}") from None
        if stream.is_finished():
            return
    if stream is not None:
        raise _Broken("br: ends early")


def _zstd(blocks: Blocks) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        rest = block
        while rest:
            stream = stream or zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
            try:
                chunk = stream.decompress(rest, _STEP)
                while chunk or not (stream.needs_input or stream.eof):
                    yield chunk
                    if stream.eof:
                        break
                    chunk = stream.decompress(b"", _STEP)
            except zstd.ZstdError as error:
                raise _Broken(f"zstd: {_words(error)}") from None
            rest = b""
            if stream.eof:
                rest, stream = stream.unused_data, None
    if stream is not None:
        raise _Broken("zstd: ends early")


def _words(error: Exception) -> str:
    return str(error)[:120]


_ZSTD_OPTIONS: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
_LAYERS: dict[str, _Layer] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "br": _br,
    "zstd": _zstd,
}
