"""Marks are heard while somebody listens, and only then."""

from __future__ import annotations

import pytest

from logstore.disk.marks import mark, observed


def test_marks_are_observed_only_inside_the_block() -> None:
    heard: list[str] = []
    mark("before")
    with observed(heard.append):
        mark("inside")
    mark("after")
    assert heard == ["inside"]


def test_error_in_the_block_ends_observation() -> None:
    heard: list[str] = []
    with pytest.raises(ValueError, match="boom"), observed(heard.append):
        raise ValueError("boom")
    mark("after")
    assert heard == []
