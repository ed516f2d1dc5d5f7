"""What a run of somebody's suite means: results beside the list of failures that are expected. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

Result: TypeAlias = Literal["passed", "failed", "skipped"]


class Expected(NamedTuple):
    """A failure that is known. `test` may end with `*`, for all that begin so.

    `varies`: the test races with its own client, so it passes in some runs.
    """

    suite: str
    test: str
    reason: str
    varies: bool = False

    def is_of(self, suite: str, test: str) -> bool:
        if self.suite != suite:
            return False
        return test.startswith(self.test[:-1]) if self.test.endswith("*") else test == self.test


def read_expected(text: str) -> list[Expected]:
    """Return the entries of `expected.toml`. Raises `ValueError` for one without a reason."""
    found = [Expected(**each) for each in tomllib.loads(text)["failure"]]
    for each in found:
        if not each.reason.strip():
            raise ValueError(f"{each.suite}: {each.test} has no reason")
    return found


@dataclass
class Verdict:
    """The outcome of one suite. Lists hold the names of tests."""

    suite: str
    passed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    unexpected_failures: list[str] = field(default_factory=list)
    unexpected_passes: list[str] = field(default_factory=list)
    never_run: list[str] = field(default_factory=list)
    """Entries of the list that match no test."""

    @property
    def holds(self) -> bool:
        """Whether something ran, and nothing was unexpected."""
        is_as_expected = not (self.unexpected_failures or self.unexpected_passes or self.never_run)
        return is_as_expected and bool(self.passed)

    def counts(self) -> dict[str, int]:
        return {
            "passed": len(self.passed),
            "expected failures": len(self.expected),
            "unexpected failures": len(self.unexpected_failures),
            "unexpected passes": len(self.unexpected_passes),
            "entries that match no test": len(self.never_run),
            "skipped by the suite": len(self.skipped),
        }


def judge(suite: str, results: Mapping[str, Result], expected: Sequence[Expected]) -> Verdict:
    """Compare the results of a suite with the list.

    A pattern may cover tests that pass, if at least one fails: a list that is out of date would hide the next
    failure.
    """
    verdict = Verdict(suite)
    own = [each for each in expected if each.suite == suite]
    for test, result in results.items():
        is_known = any(each.is_of(suite, test) for each in own)
        if result == "skipped":
            verdict.skipped.append(test)
        elif result == "passed":
            verdict.passed.append(test)
        else:
            (verdict.expected if is_known else verdict.unexpected_failures).append(test)
    for entry in own:
        covered = {test: result for test, result in results.items() if entry.is_of(suite, test)}
        if not covered:
            verdict.never_run.append(entry.test)
        elif "failed" not in covered.values() and not entry.varies:
            verdict.unexpected_passes.append(entry.test)
    return verdict
