"""Import when something is first used: the public names of a package, and numpy.

`import logstore` must stay cheap: the pytest plugins and the command line live below it, and neither may load
numpy, asyncio or a codec before it is needed (PEP 562). A program that opens a new log and appends to it does
not need numpy either; to import it takes as long as everything else that such a program does until its first
record is durable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

__all__ = ["names_from", "np"]

_CALLS_OF_AN_IMPORT: Final = 250
"""How deep it may go; that of numpy 2 takes a hundred calls."""


def names_from(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of `package`: `homes` maps a submodule to its public names.

    A prompt completes what `dir` lists.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:
        module = home_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module}"), name)

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return __getattr__, __dir__


def _descend(calls: int) -> None:
    """Raise `RecursionError` where fewer calls are left."""
    if calls:
        _descend(calls - 1)


class _Later(ModuleType):
    """Becomes a copy of the module of its name when an attribute is first read."""

    def __getattr__(self, name: str) -> Any:
        from logstore.signals import held_back, may_raise

        # numpy cannot be imported again in a process in which an import of it was interrupted, or too deep.
        _descend(_CALLS_OF_AN_IMPORT)
        with held_back(*may_raise()):
            module = import_module(self.__name__)
        vars(self).update(vars(module))  # from now on an attribute costs what it costs there
        return getattr(module, name)


if not TYPE_CHECKING:
    np = _Later("numpy")
