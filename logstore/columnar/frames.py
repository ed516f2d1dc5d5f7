"""Decompress zstd frames with one context for all, into memory of the caller.

Python's library makes a context for each frame. That takes 10 µs in a virtual machine, because it asks the
processor for its features: as long as decompressing 16 KiB. Its shared library usually exports zstd's own
functions, whose contexts may be kept. Where it does not, and for rare kinds of frames, `decompress` returns
None, and callers use `compression.decompress`, which alone names faults.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, Final

from logstore.columnar.kernels import Bytes

_SINGLE_SEGMENT: Final = 0x20
_SMALLEST_WINDOW_LOG: Final = 10
_LARGEST_WINDOW_LOG: Final = 22
"""Windows below 8 MiB: the plain code accepts them at any limit of the output."""
_HEADER_BYTES: Final = 6
"""Magic number, descriptor, and the window if the descriptor has no single segment."""


class Frames:
    """A context of zstd, for one thread, that decompresses frames of `data` into `out`."""

    def __init__(self, functions: Any, context: int, data: Bytes, out: Bytes) -> None:
        self._decompress = functions.ZSTD_decompressDCtx
        self._frame_size = functions.ZSTD_findFrameCompressedSize
        self._context = context
        self._data, self._source, self._out = data.data, data.ctypes.data, out.ctypes.data

    def decompress(self, start: int, end: int, at: int, room: int) -> int | None:
        """Decompress the frame `data[start:end]` to `out[at : at + room]`, and return its size.

        None if it is not one sound frame of a common kind that fits there.
        """
        size = end - start
        if size < _HEADER_BYTES:
            return None
        if not self._data[start + 4] & _SINGLE_SEGMENT:
            window_log = _SMALLEST_WINDOW_LOG + (self._data[start + 5] >> 3)
            if window_log > _LARGEST_WINDOW_LOG:
                return None
            # Past its window, a frame might refer to bytes that the plain code has dropped.
            room = min(room, 1 << window_log)
        source = self._source + start
        if self._frame_size(source, size) != size:
            return None
        found: int = self._decompress(self._context, self._out + at, room, source, size)
        return found if found <= room else None  # an error is a number near 2**64


@contextmanager
def frames(data: Bytes, out: Bytes) -> Iterator[Frames | None]:
    """Return a context; None if zstd's functions are not exported."""
    functions = _functions()
    context = functions and functions.ZSTD_createDCtx()
    try:
        yield Frames(functions, context, data, out) if context else None
    finally:
        if context:
            functions.ZSTD_freeDCtx(context)


@cache
def _functions() -> Any:
    """Return the library with its functions declared; None if it is not there or does not export them."""
    name = "_zstd" if sys.version_info >= (3, 14) else "backports.zstd._zstd"
    try:
        library = ctypes.CDLL(import_module(name).__file__ or "")
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        for function, result, arguments in (
            ("ZSTD_createDCtx", pointer, []),
            ("ZSTD_freeDCtx", size, [pointer]),
            ("ZSTD_findFrameCompressedSize", size, [pointer, size]),
            ("ZSTD_decompressDCtx", size, [pointer, pointer, size, pointer, size]),
        ):
            declared = getattr(library, function)
            declared.restype, declared.argtypes = result, arguments
    except (ImportError, OSError, AttributeError):
        return None
    return library
