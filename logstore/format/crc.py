"""CRC-32C (Castagnoli), the checksum of batches and producer snapshots.

The package `crc32c` computes it in hardware over any buffer, without a copy. Without that wheel, crcmod
computes the same sum slowly, over a copy (its C part takes only `bytes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logstore.disk.files import Buffer


def _portable() -> Callable[..., int]:
    from crcmod.predefined import mkPredefinedCrcFun

    crc: Callable[[bytes, int], int] = mkPredefinedCrcFun("crc-32c")

    def crc32c(data: Buffer, value: int = 0) -> int:
        return crc(data if isinstance(data, bytes) else bytes(data), value)

    return crc32c


def _best() -> Callable[..., int]:
    try:
        from crc32c import crc32c as hardware
    except ImportError:
        return _portable()
    function: Any = hardware
    return function  # type: ignore[no-any-return]


crc32c: Callable[..., int] = _best()
"""`crc32c(data, value=0)`: the checksum of `data`, continued from `value`; an unsigned 32-bit integer."""
