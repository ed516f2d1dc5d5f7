"""An owner that is dropped without a close: its lock goes with it, and Python reports that."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from logstore import Log


def test_a_log_that_was_dropped_may_be_opened_again(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "orders-0")
    log.append(b"x")
    with pytest.warns(ResourceWarning, match="unclosed owner of .*orders-0"):
        del log
        gc.collect()
    with Log.open(tmp_path / "orders-0") as log:
        assert [record.value for record in log.read()] == [b"x"]
