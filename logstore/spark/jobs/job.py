"""What a job is, for the command that runs it: a module with `HELP`, `arguments` and `prepare`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from logstore.disk.errors import EngineError, ErrorCode
from logstore.spark.jobs.work import Workers


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job says at its end, or what it would do: `facts` is the JSON object, `lines` are for people."""

    facts: Mapping[str, Any]
    lines: Sequence[str]
    is_yes: bool = True
    """False is exit code 1: damage found, replicas that differ"""


class Prepared(Protocol):
    """A job whose options make sense."""

    def plan(self) -> Answer:
        """What `run` would do now. Changes nothing, and needs no Spark."""

    def run(self, workers: Workers) -> Answer:
        """Do it. Raises `EngineError` or `OSError` where it cannot be done."""


class Job(Protocol):
    """A module of a job, imported without anything heavy."""

    @property
    def HELP(self) -> str:
        """One line."""

    def arguments(self, parser: ArgumentParser) -> None:
        """Declare what the job's command line takes."""

    def prepare(self, options: Namespace) -> Prepared:
        """Check what was given; `BadUsage` if it makes no sense."""


class BadUsage(EngineError):
    """The command line, or an option of the data source in it, is wrong; the message says what to change."""

    code = ErrorCode.INVALID_REQUEST


def named_values(option: str, texts: Sequence[str], what: str = "an option") -> dict[str, str]:
    """What was given as NAME=VALUE, once or several times. Raises `BadUsage` for anything else."""
    given = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadUsage(f"{option} {text!r}: {what} is NAME=VALUE")
        given[name] = value
    return given
