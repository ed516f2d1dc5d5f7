"""Ask the kernel which bytes of a file are in the page cache: exactly where possible, else by samples.

cachestat(2), Linux 6.5 and later, counts the cached pages of a range in one call. Elsewhere, reads that may
not wait for the device try a byte every 64 KiB, because the kernel reads ahead in runs of 128 KiB.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Final

_NO_WAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_SAMPLE_BYTES: Final = 1 << 16
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_CACHESTAT: Final = 451
"""The number of the system call, the same on every architecture."""


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    ]


_system_call = ctypes.CDLL(None).syscall if sys.platform == "linux" else None


def is_cached(descriptor: int, size: int, at: int) -> bool | None:
    """Return whether `size` bytes from `at` are in the page cache; None if the platform cannot tell.

    No byte past the end of the file is waited for. Raises `OSError`.
    """
    counted = _counted(descriptor, size, at)
    if counted is None:
        return _sampled(descriptor, size, at)
    if counted >= _pages(at, at + size):
        return True
    return counted >= _pages(at, min(at + size, os.fstat(descriptor).st_size))


def _pages(start: int, end: int) -> int:
    return (end - 1) // _PAGE_BYTES - start // _PAGE_BYTES + 1 if end > start else 0


def _counted(descriptor: int, size: int, at: int) -> int | None:
    """Return the number of cached pages; None if the kernel or the file system does not count them."""
    if _system_call is None:
        return None
    counts = _Counts()
    wanted = ctypes.byref(_Range(at, size))
    if _system_call(_CACHESTAT, descriptor, wanted, ctypes.byref(counts), 0) != 0:
        return None
    return int(counts.cached)


def _sampled(descriptor: int, size: int, at: int) -> bool | None:
    if _NO_WAIT is None:  # pragma: no cover - Linux has it
        return None
    byte = (bytearray(1),)
    try:
        for position in (*range(at, at + size, _SAMPLE_BYTES), at + size - 1):
            os.preadv(descriptor, byte, position, _NO_WAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return None
        raise
    return True
