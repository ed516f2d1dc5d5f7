"""Nothing is left out without a reason that still holds."""

from __future__ import annotations

import pytest

from tests.interop import test_admin, test_consume, test_groups, test_produce
from tests.interop.absent import ABSENT, NEEDS_THREE
from tests.interop.clients import CLIENTS

BEHAVIOURS = {
    name.removeprefix("test_")
    for module in (test_admin, test_consume, test_groups, test_produce)
    for name in vars(module)
    if name.startswith("test_")
}


@pytest.mark.parametrize(("client", "behaviour"), ABSENT)
def test_what_is_left_out_is_not_offered(client: str, behaviour: str) -> None:
    absence = ABSENT[client, behaviour]
    assert absence.is_true(), f"{client}: no longer so: {absence.why}"


def test_the_lists_name_what_there_is() -> None:
    """A line that names no behaviour would leave out nothing, and say that it does."""
    assert {behaviour for _, behaviour in ABSENT} | set(NEEDS_THREE) <= BEHAVIOURS
    assert {client for client, _ in ABSENT} <= set(CLIENTS)


def test_there_are_enough_behaviours_and_each_client_shows_most() -> None:
    assert len(BEHAVIOURS) >= 60
    for client in CLIENTS:
        assert sum(name == client for name, _ in ABSENT) < len(BEHAVIOURS) / 3
