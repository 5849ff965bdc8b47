"""Bodies out of their content encodings: gzip, deflate (with zlib's frame or raw), br, zstd, also several in a row.

Everything runs in small steps, so that no layer is ever whole in memory but the last, and that one stops at
`Bounds`: a bomb costs the bound and no more. A stream that breaks off gives what came before the break.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import brotli  # type: ignore[import-untyped]
from backports import zstd

_STEP = 1 << 16
_MAX_LAYERS = 4
# A window of more than this is refused, as browsers do.
_ZSTD_WINDOW_LOG = 23
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Bounds:
    size: int = 32 << 20
    """What providers take at most; twice that is needed to read it."""
    ratio: int = 1000
    """Unpacked to packed, judged once there is more than `ratio_from`: text is never so even."""
    ratio_from: int = 4 << 20


@dataclass(frozen=True)
class Unpacked:
    data: bytes | bytearray
    """All of it, or what came before it broke; empty if it is beyond the bounds."""
    trouble: str | None = None


class _Broken(Exception):
    """The packed bytes are wrong or end early."""


Blocks = Iterable[bytes]
_Layer = Callable[[Blocks], Iterator[bytes]]


def unpack(blocks: Blocks, encodings: Sequence[str], bounds: Bounds, size: int = 0) -> Unpacked:
    """`encodings` as the header names them: the last was applied last and comes off first. `size` of the blocks, where
    it is known: what is too large already is not read."""
    layers = [name for name in encodings if name not in ("identity", "")]
    unknown = [name for name in layers if name not in _LAYERS]
    if unknown:
        return Unpacked(b"", f"encoding {unknown[0][:40]} is unknown")
    if len(layers) > _MAX_LAYERS:
        return Unpacked(b"", f"{len(layers)} encodings, one in the other")
    if size > bounds.size:
        return Unpacked(b"", f"larger than {bounds.size >> 20} MiB")
    packed = _Counted(blocks)
    stream: Iterator[bytes] = iter(packed)
    for name in reversed(layers):
        stream = _LAYERS[name](stream)
    data = bytearray()
    try:
        for piece in stream:
            data += piece
            if len(data) > bounds.size:
                return Unpacked(b"", f"larger than {bounds.size >> 20} MiB")
            if layers and len(data) > max(bounds.ratio_from, bounds.ratio * packed.size):
                return Unpacked(b"", f"unpacks to more than {bounds.ratio} times its size")
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
            # A block may be a whole body.
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
        left = block
        while left:
            stream = stream or zlib.decompressobj(bits(left))
            full = False
            # A full step may have left some output behind.
            while left or full:
                try:
                    piece = stream.decompress(left, _STEP)
                except zlib.error as error:
                    raise _Broken(f"{name}: {_words(error)}") from None
                yield piece
                left, full = stream.unconsumed_tail, len(piece) == _STEP
                if stream.eof:
                    break
            if stream.eof:
                left, stream = stream.unused_data, None
                if not left.startswith(_GZIP_MAGIC[: len(left)]):
                    # Padding after the last member.
                    return
    if stream is not None:
        raise _Broken(f"{name}: ends early")


def _br(blocks: Blocks) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        stream = stream or brotli.Decompressor()
        try:
            piece = stream.process(block, output_buffer_limit=_STEP)
            while piece or not stream.can_accept_more_data():
                yield piece
                piece = stream.process(b"", output_buffer_limit=_STEP)
        except brotli.error as error:
            raise _Broken(f"br: {_words(error)}") from None
        if stream.is_finished():
            return
    if stream is not None:
        raise _Broken("br: ends early")


def _zstd(blocks: Blocks) -> Iterator[bytes]:
    stream = None
    for block in blocks:
        left = block
        while left:
            stream = stream or zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
            try:
                piece = stream.decompress(left, _STEP)
                while piece or not (stream.needs_input or stream.eof):
                    yield piece
                    if stream.eof:
                        break
                    piece = stream.decompress(b"", _STEP)
            except zstd.ZstdError as error:
                raise _Broken(f"zstd: {_words(error)}") from None
            left = b""
            if stream.eof:
                left, stream = stream.unused_data, None
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
