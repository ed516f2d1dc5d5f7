"""The campaign of `make export-kills`, short: an export that is killed goes on where it was, row for row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.export_kills import run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_an_export_that_is_killed_gives_each_row_once(tmp_path: Path) -> None:
    """Two rounds and the run that ends it: three times Java's start are what `make test` has time for."""
    outcome = run(tmp_path, 2, seed=1, tell=print)
    assert outcome.violations == []
    assert outcome.rounds == 2
