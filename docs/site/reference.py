"""Generate the API, command-line and error references from the code."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from typing import Any

from logstore.disk.errors import EngineError, ErrorCode
from logstore.disk.files import Disk, File, Lock

ROOMS = {
    "logstore": "Logs",
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


ADVICE: dict[ErrorCode, str] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "Report it: the broker's log has the details.",
    ErrorCode.NONE: "Nothing: the request succeeded.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "Continue from one of the bounds in the error.",
    ErrorCode.CORRUPT_MESSAGE: "Retry. If a stored batch is corrupt, run `logstore verify DIR`.",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the name; after a creation, retry.",
    ErrorCode.LEADER_NOT_AVAILABLE: "Retry after refreshing metadata.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "Refresh metadata and send to the current leader.",
    ErrorCode.REQUEST_TIMED_OUT: "Retry; a produce request may have taken effect.",
    ErrorCode.BROKER_NOT_AVAILABLE: "Wait for the broker, or use another one.",
    ErrorCode.REPLICA_NOT_AVAILABLE: "Refresh metadata; read from the leader.",
    ErrorCode.MESSAGE_TOO_LARGE: "Send smaller batches, or raise `max.message.bytes`.",
    ErrorCode.STALE_CONTROLLER_EPOCH: "Nothing: another controller has taken over.",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "Shorten the commit metadata, or raise `offset.metadata.max.bytes`.",
    ErrorCode.NETWORK_EXCEPTION: "Retry; the request may have taken effect.",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "Retry: the coordinator is loading the group.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "Retry: the offsets topic has no leader yet.",
    ErrorCode.NOT_COORDINATOR: "Find the coordinator again and retry there.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "Use letters, digits, `.`, `_` and `-`, at most 249 characters.",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Append less at once, or raise `segment.bytes`.",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Retry; nothing was appended. Bring replicas back into the ISR.",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "The record may be kept: retry only with an idempotent producer.",
    ErrorCode.INVALID_REQUIRED_ACKS: "Use `acks` 0, 1 or -1 (all).",
    ErrorCode.ILLEGAL_GENERATION: "Rejoin the group.",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "Use an assignor that all members support.",
    ErrorCode.INVALID_GROUP_ID: "Set a group id.",
    ErrorCode.UNKNOWN_MEMBER_ID: "Rejoin the group as a new member.",
    ErrorCode.INVALID_SESSION_TIMEOUT: "Stay within `group.min.session.timeout.ms` and `group.max.session.timeout.ms`.",
    ErrorCode.REBALANCE_IN_PROGRESS: "Rejoin the group.",
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "Commit fewer offsets at once.",
    ErrorCode.INVALID_TIMESTAMP: "Correct the timestamps, or widen the topic's timestamp window.",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "Connect without SASL.",
    ErrorCode.ILLEGAL_SASL_STATE: "Connect without SASL.",
    ErrorCode.UNSUPPORTED_VERSION: "Use a version that ApiVersions lists.",
    ErrorCode.TOPIC_ALREADY_EXISTS: "Use the existing topic, or another name.",
    ErrorCode.INVALID_PARTITIONS: "Request a valid number of partitions, above the current one.",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Request at most as many replicas as there are live brokers.",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "List existing brokers, each once per partition.",
    ErrorCode.INVALID_CONFIG: "Correct the setting named in the message.",
    ErrorCode.NOT_CONTROLLER: "Send the request to the current controller.",
    ErrorCode.INVALID_REQUEST: "Correct the request; the message names the field.",
    ErrorCode.POLICY_VIOLATION: "Add `delete` to `cleanup.policy` before deleting records.",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "Resend the missing batch, or start a new producer epoch.",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "Nothing: the batch was written before.",
    ErrorCode.INVALID_PRODUCER_EPOCH: "Stop: a newer instance of the producer is running.",
    ErrorCode.INVALID_TXN_STATE: "End or abort the open transaction first.",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "Nothing: a newer coordinator has taken over.",
    ErrorCode.SECURITY_DISABLED: "Nothing: brokers have no authorizer.",
    ErrorCode.OPERATION_NOT_ATTEMPTED: "Correct the other entries of the request and retry.",
    ErrorCode.KAFKA_STORAGE_ERROR: "Read from another replica; check the log dir and the broker's log.",
    ErrorCode.LOG_DIR_NOT_FOUND: "Use a log dir of that broker.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Connect without SASL.",
    ErrorCode.UNKNOWN_PRODUCER_ID: "Start a new producer epoch.",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "Wait for the reassignment, or cancel it.",
    ErrorCode.NON_EMPTY_GROUP: "Stop the group's members first.",
    ErrorCode.GROUP_ID_NOT_FOUND: "Check the group id.",
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND: "Start a new fetch session.",
    ErrorCode.INVALID_FETCH_SESSION_EPOCH: "Start a new fetch session.",
    ErrorCode.TOPIC_DELETION_DISABLED: "Set `delete.topic.enable=true`.",
    ErrorCode.FENCED_LEADER_EPOCH: "Refresh metadata: a newer leader was elected.",
    ErrorCode.UNKNOWN_LEADER_EPOCH: "Retry: this broker has not heard of that epoch yet.",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "Install the extra `codecs`, or use another codec.",
    ErrorCode.STALE_BROKER_EPOCH: "Nothing: the broker registers again.",
    ErrorCode.OFFSET_NOT_AVAILABLE: "Retry: the new leader's high watermark is not known yet.",
    ErrorCode.MEMBER_ID_REQUIRED: "Rejoin with the member id in the response.",
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "Wait until the preferred replica is in sync.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "Use fewer members, or raise `group.max.size`.",
    ErrorCode.FENCED_INSTANCE_ID: "Stop: another member uses the same `group.instance.id`.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Bring a replica back; an unclean election may lose records.",
    ErrorCode.ELECTION_NOT_NEEDED: "Nothing: the leader is already the right one.",
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "Nothing: there is no reassignment to cancel.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Unsubscribe the group from the topic first.",
    ErrorCode.INVALID_RECORD: "Correct the records that the error lists.",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "Retry: a transaction's offsets are undecided.",
    ErrorCode.PRODUCER_FENCED: "Stop: a newer instance of the producer is running.",
    ErrorCode.INVALID_UPDATE_VERSION: "Read the current state and retry.",
    ErrorCode.UNKNOWN_TOPIC_ID: "Refresh metadata: the topic was deleted, or is not known yet.",
    ErrorCode.INCONSISTENT_TOPIC_ID: "Refresh metadata: the topic was created anew.",
    ErrorCode.INCONSISTENT_CLUSTER_ID: "Check that the broker's log dirs belong to this cluster.",
    ErrorCode.INELIGIBLE_REPLICA: "Nothing: the replica must catch up before it joins the ISR.",
    ErrorCode.NEW_LEADER_ELECTED: "Refresh metadata.",
}
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
    from pathlib import Path

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
        "name of a test. (The rules S1 to S11 and R1 to R7 in [Durability](../durability.md) are another list.)\n",
        "| schedule | what happens | test |",
        "|---|---|---|",
    ]
    for number in sorted(rows, key=lambda each: (each[0] == "R", int(re.sub(r"\D", "", each)), each)):
        lines += [f"| {number} | {row} |" for row in rows[number]]
    return "\n".join(lines) + "\n"
