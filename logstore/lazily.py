"""Import when something is first used: the public names of a package, and numpy.

`import logstore` must stay cheap: the pytest plugins and the command line live below it, and neither may load
numpy, asyncio or a codec before it is needed (PEP 562). A program that opens a new log and appends to it does
not need numpy either; to import it takes as long as everything else that such a program does until its first
record is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["names_from", "np"]


def names_from(package: str, homes: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of `package`: `homes` maps a submodule to the public names it defines."""
    home_of = {name: module for module, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:
        module = home_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module}"), name)

    return __getattr__


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold back Ctrl-C: numpy cannot be imported again in a process that has begun to import it."""
    import signal
    from threading import current_thread, main_thread

    if (
        current_thread() is not main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield  # nothing is raised here
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if held:
            raise KeyboardInterrupt


class _Later(ModuleType):
    """Becomes a copy of the module of its name when an attribute is first read."""

    def __getattr__(self, name: str) -> Any:
        with _no_interrupt():
            module = import_module(self.__name__)
        vars(self).update(vars(module))  # from now on an attribute costs what it costs there
        return getattr(module, name)


if not TYPE_CHECKING:
    np = _Later("numpy")
