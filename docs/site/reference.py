"""Generate the API, command-line and error references from the code."""

from __future__ import annotations

import importlib
import inspect
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk, File, Lock

ROOMS = {
    "logstore": "Logs",
    "logstore.queue": "Queues",
    "logstore.disk": "Disk seam, ids and base errors",
    "logstore.checkpoint": "Checkpoint files",
    "logstore.replication": "Replication engine",
    "logstore.broker": "Brokers and clients",
    "logstore.spark": "Spark",
    "logstore.testing": "Testing kit",
}
"""Public packages and the titles of their pages."""


def public(room: str) -> dict[str, Any]:
    """Return the public names of a package with their values."""
    module = importlib.import_module(room)
    return {name: getattr(module, name) for name in getattr(module, "__all__", ())}


def undocumented() -> list[str]:
    """Return every public class, function, method and property without a docstring."""
    missing = set()
    for room in ROOMS:
        for name, value in public(room).items():
            if inspect.isclass(value):
                # A dataclass or named tuple without a docstring is given its signature as one.
                if not value.__dict__.get("__doc__") or (value.__doc__ or "").startswith(
                    f"{value.__name__}("
                ):
                    missing.add(f"{room}.{name}")
                missing.update(_undocumented_members(value))
            elif inspect.isroutine(value) and not value.__doc__:
                missing.add(f"{room}.{name}")
    return sorted(missing)


_SEAMS = (Disk, File, Lock)


def _members(protocol: type[Any]) -> set[str]:
    return {name for name in protocol.__dict__ if not name.startswith("_")}


def _undocumented_members(value: type[Any]) -> Iterator[str]:
    # A class that implements a seam takes the docstrings of the protocol.
    inherited = set().union(*(members for members in map(_members, _SEAMS) if members <= set(dir(value))))
    for name in dir(value):
        owner = next((each for each in value.__mro__ if name in each.__dict__), None)
        if name.startswith("_") or owner is None or not owner.__module__.startswith("logstore"):
            continue
        member = owner.__dict__[name]
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if (
            (inspect.isfunction(member) or isinstance(member, property))
            and not member.__doc__
            and name not in inherited
        ):
            yield f"{owner.__module__}.{owner.__qualname__}.{name}"


def api_page(room: str) -> str:
    """Return the Markdown of a package's API page; mkdocstrings fills in the entries."""
    lines = [f"# {ROOMS[room]}\n", f"`import {room}`\n"]
    module = importlib.import_module(room)
    constants = []
    for name, value in public(room).items():
        if inspect.isclass(value) or inspect.isroutine(value):
            lines.append(
                f"::: {value.__module__}.{value.__qualname__}\n    options:\n      heading: {name}\n"
            )
        else:
            constants.append(f"| `{name}` | `{str(value).replace(' | ', ' or ')}` |")
    if constants:
        lines += ["## Constants\n", "| name | value |", "|---|---|", *constants, ""]
    if not public(room):
        lines.append(inspect.getdoc(module) or "")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    """Return the Markdown of the command reference: the help text of every verb."""
    import typer

    from logstore.cli.main import app

    lines = [
        "# Command line\n",
        "Exit codes: 0 for success, 1 if the answer is negative (damage found, replicas differ) or the operation was",
        "refused, 2 for wrong usage. Errors are one line on stderr. Verbs that report facts take `--json`.\n",
        "This page is the output of `--help`.\n",
    ]
    for path, text in _help("logstore", typer.main.get_command(app)):
        lines += [f"{'##' if path.count(' ') < 2 else '###'} {path}\n", "```text", text, "```\n"]
        if path == "logstore pipeline":
            for job, job_text in _job_help():
                lines += [f"### {path} {job}\n", "```text", job_text, "```\n"]
    return "\n".join(lines)


def _help(path: str, command: Any) -> Iterator[tuple[str, str]]:
    if path == "logstore pipeline":
        from logstore.spark.jobs.command import JOBS, parser

        yield path, parser(JOBS, path).format_help().rstrip()
        return
    context = command.context_class(command, info_name=path, terminal_width=100)
    yield path, command.get_help(context).rstrip()
    for name, verb in sorted(getattr(command, "commands", {}).items()):
        yield from _help(f"{path} {name}", verb)


def _job_help() -> Iterator[tuple[str, str]]:
    import argparse

    from logstore.spark.jobs.command import JOBS, parser

    os.environ["COLUMNS"] = "100"
    top = parser(JOBS, "logstore pipeline")
    (verbs,) = (each for each in top._actions if isinstance(each, argparse._SubParsersAction))
    for name, each in verbs.choices.items():
        yield name, each.format_help().rstrip()


_ADVICE = Path(__file__).with_name("error-advice.toml")
ADVICE = {ErrorCode[name]: text for name, text in tomllib.loads(_ADVICE.read_text()).items()}
"""The advice for each error code. A test requires an entry for every code."""


def errors_page() -> str:
    """Return the Markdown of the error reference."""
    by_code: dict[ErrorCode, list[type[EngineError]]] = {}
    for each in _error_classes():
        by_code.setdefault(each.code, []).append(each)
    lines = [
        "# Errors\n",
        "Every refusal of the library is an `EngineError` with the error code that a Kafka client would receive.",
        "Errors marked *retriable* may succeed if the same request is repeated. A violated internal invariant is an",
        "`AssertionError`, never one of these.\n",
        "| number | name | Python classes | what to do |",
        "|---|---|---|---|",
    ]
    for code in sorted(ErrorCode):
        classes = sorted(by_code.get(code, []), key=lambda each: each.__name__)
        names = ", ".join(f"[`{each.__name__}`](#{each.__name__.lower()})" for each in classes) or "–"
        lines.append(f"| {int(code)} | `{code.name}` | {names} | {ADVICE[code]} |")
    lines += ["", "## Exception classes\n"]
    for each in sorted(_error_classes(), key=lambda each: each.__name__):
        retriable = ", retriable" if each.retriable else ""
        lines += [
            f"### {each.__name__}\n",
            f"`{each.__module__}.{each.__name__}` · {each.code.name} ({int(each.code)}){retriable}\n",
            f"{inspect.getdoc(each) or ''}\n" if each.__doc__ else "",
        ]
    return "\n".join(lines) + "\n"


def _error_classes() -> list[type[EngineError]]:
    for module in (
        "logstore.errors",
        "logstore.replication.errors",
        "logstore.replication.controller.errors",
        "logstore.replication.metastore.errors",
        "logstore.broker.errors",
        "logstore.spark.errors",
    ):
        importlib.import_module(module)
    found: list[type[EngineError]] = []
    waiting = [EngineError]
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        found += [each for each in subclasses if each.__module__.startswith("logstore.")]
        waiting += subclasses
    # Other modules may define errors of their own; only those imported above are listed, in every process alike.
    wanted = (".errors",)
    return [each for each in dict.fromkeys(found) if each.__module__.endswith(wanted)]


def replication_rows_page() -> str:
    """Return the Markdown of the replication behaviours that Kafka's tests pin down, with the tests that show them."""
    from tests.replication.kafka_rows import ROWS

    titles = {
        "6.1": "Leader epoch cache",
        "6.2": "Partition",
        "6.3": "Replica, ISR and high watermark files",
        "6.4": "Replica manager",
        "6.5": "Fetchers",
        "6.6": "Epoch protocol, end to end",
        "6.7": "Controller",
        "6.8": "Waiting operations, ISR changes, topics",
    }
    lines = [
        "# Replication behaviours\n",
        "Behaviours of replication and of the controller that Apache Kafka's tests pin down, with the tests that show",
        "them here. The numbers are the prefixes of test names, such as `test_6_1_cuts`.\n",
    ]
    section = ""
    for row, shown_by in ROWS.items():
        number, _, behaviour = row.partition(" ")
        if number != section:
            section = number
            lines += [f"\n## {number} {titles[number]}\n", "| behaviour | shown by |", "|---|---|"]
        tests = "<br>".join(f"`{test}`" for test in shown_by.split(","))
        if shown_by.startswith("docs/differences.md: "):
            tests = "[Differences from Kafka](../differences.md)"
        lines.append(f"| {behaviour.replace('|', chr(92) + '|')} | {tests} |")
    return "\n".join(lines) + "\n"


def schedules_page() -> str:
    """Return the Markdown of the failure schedules: each numbered sequence of failures with its test."""
    import ast
    import re

    root = Path(__file__).parent.parent.parent
    rows: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            numbers = re.findall(r"(?<=_)(s\d+[ab]?)(?=_|$)", node.name)
            if path.name in ("test_reassignment.py", "test_reassignment_faults.py"):
                numbers += re.findall(r"(?<=_)(r\d+)(?=_|$)", node.name)
            title = re.sub(r"^test_(?:[sr]\d+[ab]?_)*", "", node.name).replace("_", " ")
            doc = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            for number in numbers:
                where = f"`{path.relative_to(root)}::{node.name}`"
                rows.setdefault(number.upper(), []).append(f"{title.capitalize()}. {doc} | {where}")
    lines = [
        "# Failure schedules\n",
        "Sequences of failures that replication must survive. S0 to S67 concern logs, the ISR, the controller and",
        "disks; R1 to R15 concern a reassignment whose controller fails at each step. Each number is carried by the",
        "name of a test. (The rules S1 to S13 and R1 to R7 in [Durability](../durability.md) are another list.)\n",
        "| schedule | what happens | test |",
        "|---|---|---|",
    ]
    for number in sorted(rows, key=lambda each: (each[0] == "R", int(re.sub(r"\D", "", each)), each)):
        lines += [f"| {number} | {row} |" for row in rows[number]]
    return "\n".join(lines) + "\n"
