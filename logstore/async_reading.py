"""Reading for tasks: the methods of `Reading`, awaited, on threads.

They are derived, with their signatures: `get = _in_thread(Reading.get)`. What a class overrides of `Reading`
is what runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from logstore.format.record import Record
from logstore.log.reading import Reading

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_ITEMS: Final = 16
_MOST_ITEMS: Final = 1024
_MOST_BYTES: Final = 1 << 20


def _in_thread(
    method: Callable[Concatenate[Reading, P], T],
) -> Callable[Concatenate[AsyncReading, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncReading, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(partial(getattr(self._reading, method.__name__), *args, **kwargs))

    return call


def in_pieces(
    method: Callable[Concatenate[Any, P], Iterator[T]],
) -> Callable[Concatenate[AsyncReading, P], AsyncIterator[T]]:
    @wraps(method)
    async def call(self: AsyncReading, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        items = await self._run(partial(getattr(self._reading, method.__name__), *args, **kwargs))
        at_most = _FIRST_ITEMS  # a reader of few records waits for no more
        while piece := await self._run(partial(_piece, items, at_most)):
            for item in piece:
                yield item
            at_most = min(4 * at_most, _MOST_ITEMS)

    return call


class AsyncReading:
    """The reading half of a log for tasks. Iterators are asynchronous."""

    def __init__(self, reading: Reading) -> None:
        """Read from `reading`, on threads."""
        self._reading = reading

    get = _in_thread(Reading.get)
    __getitem__ = _in_thread(Reading.__getitem__)
    first = _in_thread(Reading.first)
    last = _in_thread(Reading.last)
    read_bytes = _in_thread(Reading.read_bytes)
    offset_for_timestamp = _in_thread(Reading.offset_for_timestamp)
    read = in_pieces(Reading.read)
    read_values = in_pieces(Reading.read_values)
    read_keys_values = in_pieces(Reading.read_keys_values)
    read_reverse = in_pieces(Reading.read_reverse)
    read_batches = in_pieces(Reading.read_batches)
    read_arrow = in_pieces(Reading.read_arrow)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Yield all records, as `read` does."""
        return self.read()

    def __bool__(self) -> bool:
        """True, also without records."""
        return True

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)


def _piece(items: Iterator[T], at_most: int) -> list[T]:
    """Take items until there are `at_most`, or a megabyte of them."""
    found: list[T] = []
    size = 0
    for item in items:
        found.append(item)
        size += _size(item)
        if len(found) == at_most or size >= _MOST_BYTES:
            break
    return found


def _size(item: Any) -> int:
    match item:
        case Record():
            return len(item.key or b"") + len(item.value or b"")
        case bytes():
            return len(item)
        case tuple():
            return sum(map(len, filter(None, item)))
    return getattr(item, "nbytes", 0) or getattr(item, "size", 0)
