"""Base classes for objects that `with` or `async with` closes."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """The end of `with` closes the object, also after an error."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what the object holds."""
        raise NotImplementedError


class AsyncClosing:
    """The end of `async with` closes the object, also after an error."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release what the object holds."""
        raise NotImplementedError
