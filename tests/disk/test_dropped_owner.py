"""An owner that is dropped without a close: its lock goes with it, and Python reports that."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from logstore import Log


def drop_one(path: Path) -> None:
    log = Log.open(path)
    log.append(b"x")
    del log
    gc.collect()


def test_a_log_that_was_dropped_may_be_opened_again(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match="unclosed owner of .*orders-0"):
        drop_one(tmp_path / "orders-0")
    with Log.open(tmp_path / "orders-0") as log:
        assert [record.value for record in log.read()] == [b"x"]
