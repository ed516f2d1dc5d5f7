"""CRC-32C: the fast implementation, the portable one, and the published sums."""

from __future__ import annotations

import builtins
import importlib.util
import sys
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.format import crc
from tests.golden.reading import ALL


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as it is where the `crc32c` wheel is not installed."""
    real = builtins.__import__

    def without_crc32c(name: str, *args: Any, **kwargs: Any) -> ModuleType:
        if name == "crc32c":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_crc32c)
    find = PathFinder.find_spec
    monkeypatch.setattr(
        PathFinder, "find_spec", lambda name, *rest: None if "crc32c" in name else find(name, *rest)
    )
    spec = importlib.util.find_spec("logstore.format.crc")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module is not sys.modules["logstore.format.crc"]
    return module


@pytest.mark.parametrize(("data", "expected"), ALL["primitives"]["crc32c"])
def test_published_sums(data: str, expected: int, portable: Any) -> None:
    """The values every CRC-32C has, from both implementations."""
    assert crc.crc32c(bytes.fromhex(data)) == expected
    assert portable.crc32c(bytes.fromhex(data)) == expected


@settings(derandomize=True, max_examples=50)
@given(data=st.binary(max_size=300), cut=st.integers(0, 300))
def test_continues_from_a_sum(data: bytes, cut: int) -> None:
    """A sum over two pieces is the sum over the whole; any buffer will do."""
    first = crc.crc32c(memoryview(data)[:cut])
    assert crc.crc32c(bytearray(data[cut:]), first) == crc.crc32c(data)


def test_fallback_takes_any_buffer(portable: Any) -> None:
    """crcmod's C part takes `bytes` only; the fallback hides that."""
    for kind in (bytes, bytearray, memoryview):
        assert portable.crc32c(kind(b"123456789")) == 0xE3069283
        assert portable.crc32c(kind(b"6789"), crc.crc32c(b"12345")) == 0xE3069283
