"""A request of several items: each item has a fate of its own, and gets it once.

`results` fills as the fates become certain. It outlives the event: one that starts again goes on from
there, and where the term ends half-way it says what was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from logstore.disk.errors import EngineError, ErrorCode
from logstore.replication.controller.context import Steps
from logstore.replication.controller.errors import ControllerFenced, MetadataConflict
from logstore.replication.messages import AdminResult

K = TypeVar("K")
W = TypeVar("W")
R = TypeVar("R")


def one_by_one(
    wanted: Mapping[str, W], results: dict[str, AdminResult], carry_out: Callable[[str, W], Steps[None]]
) -> Steps[None]:
    """Carry out, in order of their names, what has no result yet; what one raises is its result.

    Raises `ControllerFenced` and `MetadataConflict`, which are about this controller and end the event.
    """
    for name, what in sorted(wanted.items(), key=lambda item: item[0]):
        if name in results:
            continue
        try:
            yield from carry_out(name, what)
            results[name] = AdminResult(ErrorCode.NONE)
        except (MetadataConflict, ControllerFenced):
            raise
        except EngineError as error:
            results[name] = AdminResult(error.code, str(error))


def of_all(items: Iterable[K], results: Mapping[K, R], result: Callable[[ErrorCode, str], R]) -> dict[K, R]:
    """A result for every item: what the term did not come to may be asked of the next controller."""
    refusal = result(ErrorCode.NOT_CONTROLLER, "ask the active controller")
    return {item: results.get(item, refusal) for item in items}
