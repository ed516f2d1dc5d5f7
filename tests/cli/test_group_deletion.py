"""`logstore groups delete` with several groups, of which some cannot be deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from logstore.broker.wire import types as t
from logstore.cli import groups
from logstore.disk.errors import ErrorCode
from tests.cli.conftest import Outcome


def test_a_group_that_is_refused_leaves_no_doubt_about_the_others(
    command: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the command: those before were deleted without a word, those behind were not."""
    deleted: list[str] = []

    def coordinator(group: str, request: t.DeleteGroupsRequest) -> t.DeleteGroupsResponse:
        error = ErrorCode.GROUP_ID_NOT_FOUND if group == "none" else ErrorCode.NONE
        deleted.extend([group] if not error else [])
        result = t.DeleteGroupsResponseDeletableGroupResult(group_id=group, error_code=error)
        return t.DeleteGroupsResponse(results=[result])

    monkeypatch.setattr(groups, "asked_at", lambda *_: nullcontext(SimpleNamespace(coordinator=coordinator)))
    ended = command("groups", "delete", "a", "none", "b", "--bootstrap", "one:1")
    assert (ended.code, ended.out, deleted) == (1, "a  deleted\nb  deleted\n", ["a", "b"])
    assert "GROUP_ID_NOT_FOUND: group none" in ended.err
    as_json = command("groups", "delete", "none", "b", "--bootstrap", "one:1", "--json").out
    assert [json.loads(line) for line in as_json.splitlines()] == [
        {"group": "none", "is_deleted": False, "error": "GROUP_ID_NOT_FOUND"},
        {"group": "b", "is_deleted": True},
    ]
