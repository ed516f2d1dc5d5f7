"""What is in the page cache: one page that is missing is noticed, whatever the samples say."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import pytest

from logstore.disk import page_cache

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
PAGES = 200


def opened(path: Path) -> int:
    path.write_bytes(os.urandom(PAGES * 4096))
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.pread(descriptor, PAGES * 4096, 0)
    return descriptor


def test_what_was_read_is_there(tmp_path: Path) -> None:
    descriptor = opened(tmp_path / "file")
    for size, at in ((1, 0), (4096, 0), (4097, 4095), (PAGES * 4096, 0), (100_000, 12_345)):
        assert page_cache.is_cached(descriptor, size, at) in (True, None)
    os.close(descriptor)


def test_one_missing_page_is_noticed_where_the_kernel_counts(tmp_path: Path) -> None:
    descriptor = opened(tmp_path / "file")
    direct = os.open(tmp_path / "file", os.O_RDWR | os.O_DIRECT)
    os.pwritev(direct, [mmap.mmap(-1, 4096)], 4096 * 101)
    os.close(direct)
    if page_cache._counted(descriptor, 4096, 0) is None:
        pytest.skip("this kernel does not count")
    assert page_cache.is_cached(descriptor, PAGES * 4096, 0) is False
    os.pread(descriptor, PAGES * 4096, 0)
    assert page_cache.is_cached(descriptor, PAGES * 4096, 0) is True
    os.close(descriptor)


def test_samples_are_the_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_system_call", None)
    descriptor = opened(tmp_path / "file")
    assert page_cache.is_cached(descriptor, PAGES * 4096, 0) in (True, None)
    os.close(descriptor)
    with pytest.raises(OSError, match="descriptor"):
        page_cache.is_cached(descriptor, 4096, 0)
