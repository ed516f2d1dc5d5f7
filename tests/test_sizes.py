"""How large things may grow: files, classes, constructors. An exception states its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("logstore", "replication", "checkpoint", "bench", "examples", "tests", "docs")
MOST_LINES, MOST_METHODS, MOST_PARAMETERS = 600, 30, 7

REASONS: dict[str, str] = {
    "logstore/broker/wire/types.py": "generated from the declarations of Kafka's messages",
    "logstore/log/manager.py:LogManager": "what a node hands in (disk, clock, jitter, …), by keyword",
    "logstore/segment/segment.py:Segment": "what recovery found of a segment, each by keyword",
    "logstore/spark/broker_logs.py:RangeFetch": "what bounds one fetch, each by keyword",
    "logstore/testing/crash.py:CrashLab": "the lab's settings, each by keyword with a default",
    "logstore/testing/kit.py:SimulatedCluster": "public: one call for each fault; settings by keyword",
    "replication/driver.py:InProcessCluster": "settings of a whole cluster, each by keyword",
    "tests/crash/script.py": "one method for each kind of step that a script may take",
    "tests/crash/script.py:Script": "one method for each kind of step that a script may take",
    "tests/hostile/make_cases.py": "a list of malformed requests, and nothing else",
    "tests/logstore/test_settings.py": "one test for each setting, in the order of the page",
    "tests/model/protocol.py": "the model of the protocol, read as one piece",
    "tests/model/protocol.py:Protocol": "one method for each step of the protocol",
    "tests/replication/controller/test_swarm_of_all.py:Everything": "one method for each event of the world",
    "logstore/testing/stage.py:Stage": "the stage of all schedules: one method for each thing that happens",
}
"""What is larger, by file or `file:class`, and why."""


def sources() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            # The links in `logstore/` lead to folders that are listed themselves.
            if path.resolve() == path:
                yield str(path.relative_to(ROOT)), path.read_text()


def oversized(name: str, source: str) -> Iterator[tuple[str, str]]:
    """Yield what is too large in a file: its place, and how large it is."""
    if (lines := source.count("\n")) > MOST_LINES:
        yield name, f"{lines} lines"
    if source.count("def ") <= MOST_METHODS and "def __init__" not in source:
        return  # most files, and to parse them takes seconds
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > MOST_METHODS:
                yield f"{name}:{node.name}", f"{len(methods)} methods"
            for method in methods:
                count = len(method.args.args) - 1 + len(method.args.kwonlyargs)
                if method.name == "__init__" and count > MOST_PARAMETERS:
                    yield f"{name}:{node.name}", f"a constructor with {count} parameters"


def test_nothing_outgrows_a_reader() -> None:
    found = {place: size for name, source in sources() for place, size in oversized(name, source)}
    unexplained = {place: size for place, size in found.items() if place not in REASONS}
    assert unexplained == {}, "split it, or give the reason in REASONS"
    assert REASONS.keys() <= found.keys(), "an exception that is no longer needed"


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ("\n" * 601, "601 lines"),
        ("class A:\n" + "".join(f"    def m{number}(self): ...\n" for number in range(31)), "31 methods"),
        (
            "class A:\n    def __init__(self, a, b, c, d, *, e, f, g, h): ...\n",
            "a constructor with 8 parameters",
        ),
    ],
)
def test_the_rule_is_noticed_when_broken(source: str, size: str) -> None:
    assert [found for _, found in oversized("a.py", source)] == [size]
