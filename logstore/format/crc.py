"""CRC-32C (Castagnoli), the checksum of batches and producer snapshots.

The package `crc32c` computes it in hardware over any buffer, without a copy. Without that wheel, crcmod
computes the same sum slowly, over a copy (its C part takes only `bytes`).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
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
        function: Any = _compiled_alone()
        if function is None:
            from crc32c import crc32c as function
    except ImportError:
        return _portable()
    return function  # type: ignore[no-any-return]


def _compiled_alone() -> Callable[..., int] | None:
    """Load the compiled module of the package `crc32c` without the package; None if it is not found.

    `crc32c/__init__.py` reads its version with `importlib.metadata`, which imports e-mail and CSV: 15 ms, a
    fifth of the start of a program with numpy.
    """
    package = PathFinder.find_spec("crc32c")
    places = package.submodule_search_locations if package is not None else None
    found = PathFinder.find_spec("crc32c._crc32c", places) if places else None
    if found is None or found.loader is None:
        return None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    function: Callable[..., int] | None = getattr(module, "crc32c", None)
    return function


crc32c: Callable[..., int] = _best()
"""`crc32c(data, value=0)`: the checksum of `data`, continued from `value`; an unsigned 32-bit integer."""
