"""The structure of the package: no import cycle between files, and no walk that crosses too many of them."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import grimp
import pytest

from logstore.segment.scan import use_compiled
from tests.crossings import WALKS, Bar, main, measure

ROOT = Path(__file__).parent.parent


def test_no_two_files_import_each_other() -> None:
    """Directly or through others; imports inside functions count, those for type checkers do not."""
    graph = grimp.build_graph("logstore", cache_dir=None, exclude_type_checking_imports=True)
    importers: dict[str, set[str]] = defaultdict(set)
    waiting = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    for module, imported in waiting.items():
        for each in imported:
            importers[each].add(module)
    free = [module for module, imported in waiting.items() if not imported]
    while free:
        done = free.pop()
        del waiting[done]
        for module in importers[done]:
            waiting[module].discard(done)
            if not waiting[module]:
                free.append(module)
    # What is left lies on a cycle or imports one.
    assert sorted(waiting) == []


@pytest.mark.parametrize("bar", WALKS, ids=lambda bar: str(bar.name))
def test_a_walk_crosses_no_more_files_than_before(bar: Bar) -> None:
    result = measure(bar)
    assert result.files <= bar.files_today, (sorted(result.trace.files), result.trace.hops)
    assert bar.max_hops is None or result.hops <= bar.max_hops, result.trace.hops


def test_a_walk_is_the_same_in_a_process_that_has_loaded_compiled_code() -> None:
    opening = next(bar for bar in WALKS if bar.name == "open after a kill")
    assert use_compiled()
    try:
        assert measure(opening).files <= opening.files_today
    finally:
        use_compiled(wanted=False)


def test_the_command_prints_a_walk(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "append(bytes)"]) == 0
    assert "logstore/log/outgoing.py → logstore/log/stretch.py" in capsys.readouterr().out


def test_make_test_looks_for_spark_tests_where_they_are() -> None:
    """Its run of them collects these paths alone: one elsewhere would never be run."""
    named = re.search(r"^SPARK_TESTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named is not None
    paths = [ROOT / path for path in named[1].split()]
    marked = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"\bmark\.spark\b", path.read_text())
    ]
    # A page that `make spark-hour` runs by itself.
    marked.remove(ROOT / "tests/deploy/test_spark_hour.py")
    assert [path for path in marked if not any(path.is_relative_to(each) for each in paths)] == []
    assert all(path.exists() for path in paths)
