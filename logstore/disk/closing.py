"""Base classes for objects that `with` or `async with` closes."""

from __future__ import annotations

from types import TracebackType
from typing import NoReturn, Self


class OfThisProcess:
    """An object with files, locks or connections, which cannot be copied or sent to another process."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{name} objects cannot be pickled or copied; send a path or address, and open it there"
        )


class Closing(OfThisProcess):
    """The end of `with` closes the object, also after an error."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what the object holds."""
        raise NotImplementedError


class AsyncClosing(OfThisProcess):
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
