"""The one place where source becomes a function. The source comes of declarations, never of a wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def compiled(name: str, source: str, names: Mapping[str, object], *, shown_as: str) -> Any:
    """The function called `name` that `source` defines, with `names` as its globals.

    Tracebacks show `shown_as` where another function's have a file.
    """
    namespace = dict(names)
    exec(compile(source, f"<{shown_as}>", "exec"), namespace)
    return namespace[name]
