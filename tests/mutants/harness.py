"""Apply a mutant to a copy of the repository, and run the tests that should notice it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("logstore", "replication", "checkpoint", "tests")
FILES: Final = ("pyproject.toml",)
NO_TESTS, FAILED, PASSED = 5, 1, 0


class Area(Enum):
    REPLICATION = "replication"
    GROUPS = "groups"
    RECOVERY = "recovery"
    STORE = "store"
    PRODUCERS = "producers"
    QUEUES = "queues"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake: in `file`, `old` becomes `new`. `old` occurs there once. `tests` are paths, for pytest."""

    name: str
    area: Area
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def of(area: Area, file: str, tests: tuple[str, ...], *mistakes: tuple[str, str, str]) -> list[Mutant]:
    """Return the mutants of one file: name, text and replacement of each."""
    return [Mutant(name, area, file, old, new, tests) for name, old, new in mistakes]


class Fate(Enum):
    NOTICED = "noticed"
    SURVIVED = "SURVIVED"
    TIMED_OUT = "timed out"
    """The tests hung, or took far longer than without the mutant: noticed as well."""


def mutated(mutant: Mutant, source: str) -> str:
    """Return the changed source. Raises `ValueError` unless the place is found once and changes."""
    count = source.count(mutant.old)
    if count != 1 or mutant.old == mutant.new:
        raise ValueError(f"{mutant.name}: its text occurs {count} times in {mutant.file}; it must be once")
    return source.replace(mutant.old, mutant.new)


@contextmanager
def copy_of_the_code(directory: Path) -> Iterator[Path]:
    """Copy what tests need; links inside it stay links."""
    copy = directory / "code"
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignored)
    for file in FILES:
        shutil.copy2(ROOT / file, copy / file)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def run_tests(copy: Path, tests: tuple[str, ...], limit_s: float) -> int | None:
    """Return pytest's exit code; None if the time was up."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:benchmark", "-p", "no:cacheprovider"]
    # Without bytecode: a file may change twice within the resolution of its time.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    marks = "not slow and not interop and not spark"
    try:
        ended = subprocess.run(
            [*command, "-m", marks, *tests],
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if ended.returncode not in (PASSED, FAILED):
        raise RuntimeError(f"pytest ended with {ended.returncode}:\n{ended.stdout[-2000:]}")
    return ended.returncode


def fate_of(mutant: Mutant, copy: Path, limit_s: float) -> Fate:
    """Apply the mutant, run its tests, and take it back."""
    path = copy / mutant.file
    source = path.read_text()
    path.write_text(mutated(mutant, source))
    try:
        code = run_tests(copy, mutant.tests, limit_s)
    finally:
        path.write_text(source)
    if code is None:
        return Fate.TIMED_OUT
    return Fate.SURVIVED if code == PASSED else Fate.NOTICED
