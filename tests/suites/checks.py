"""Checks of one subject, such as the tools of a release: each is a function that fails by any exception."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from tests.suites.verdict import Result

S = TypeVar("S")


def results_of(checks: Iterable[Callable[[S], None]], subject: S, failures: Path) -> dict[str, Result]:
    """Run checks in their order and return the results by name; write the errors into `failures`."""
    results: dict[str, Result] = {}
    with failures.open("w") as said:
        for each in checks:
            name = each.__name__.replace("_", "-")
            try:
                each(subject)
            except Exception as error:  # a program fails any way it likes
                results[name] = "failed"
                said.write(f"--- {name}: {type(error).__name__}: {error}\n")
            else:
                results[name] = "passed"
    return results
