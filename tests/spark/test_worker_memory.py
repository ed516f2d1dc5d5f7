"""A worker exempts its loaded modules from garbage collection: once, and only in a task."""

from __future__ import annotations

import gc
import sys

import pytest
from pyspark import TaskContext

import logstore.columnar.kernels  # noqa: F401
from logstore.spark.worker_memory import spare_loaded


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the collector, which freezes nothing here."""
    found: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: found.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: found.append("freeze"))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: found.count("freeze"))
    return found


def test_garbage_is_removed_first_and_later_tasks_do_nothing(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    spare_loaded()
    spare_loaded()
    assert calls == ["collect", "freeze"]


def test_the_users_own_process_is_left_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is not asked for either: it takes 0.1 s where millions of objects are exempt."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: calls.append("count"))
    spare_loaded()
    assert not calls


def test_a_task_without_rows_leaves_it_to_a_later_one(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    monkeypatch.delitem(sys.modules, "logstore.columnar.kernels")
    spare_loaded()
    assert not calls
