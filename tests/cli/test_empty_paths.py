"""No verb takes an empty path, such as "$UNSET", for the current directory."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from logstore.arguments import EMPTY_PATH
from logstore.cli.main import app
from logstore.spark.jobs.command import JOBS, parser
from logstore.spark.jobs.job import BadUsage
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]
NAMES = ("DIR", "FILE", "PATH")


def _verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(command, "commands"):
        for word, verb in command.commands.items():
            yield from _verbs(verb, (*words, word))
    else:
        yield words, command


def _paths() -> Iterator[tuple[str, ...]]:
    """Every verb's words up to a path, with a directory for each argument before it."""
    for words, verb in _verbs(typer.main.get_command(app)):
        hints = typing.get_type_hints(verb.callback)
        before = 0
        for parameter in verb.params:
            is_option = parameter.param_type_name == "option"
            metavar = parameter.metavar or ""
            if "Path" in str(hints.get(parameter.name)) or any(name in metavar for name in NAMES):
                yield (*words, parameter.opts[-1]) if is_option else (*words, *["."] * before)
            before += not is_option


def test_most_verbs_have_a_path() -> None:
    assert len(list(_paths())) > 100


@pytest.mark.parametrize("words", list(_paths()), ids=" ".join)
def test_an_empty_path_is_wrong_usage(
    command: Command, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command(*words, "")
    assert (ended.code, ended.out) == (2, "")
    assert f": {EMPTY_PATH} (see logstore " in ended.err
    assert not list(tmp_path.iterdir())


def test_an_empty_path_among_others(command: Command, tmp_path: Path) -> None:
    ended = command("verify", tmp_path, "")
    assert (ended.code, "Invalid value for 'DIR...': the path is empty;" in ended.err) == (2, True), ended


def test_a_point_is_the_current_directory(
    command: Command, partition: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(partition)
    assert command("verify", ".").code == 0


def _paths_of_jobs() -> Iterator[tuple[str, ...]]:
    for job, verb in _parsers(parser(JOBS, "logstore pipeline")):
        for action in verb._actions:
            if any(name in str(action.metavar) for name in NAMES):
                yield (job, *action.option_strings[-1:])


def _parsers(top: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


@pytest.mark.parametrize("words", list(_paths_of_jobs()), ids=" ".join)
def test_an_empty_path_of_a_job_is_wrong_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(BadUsage, match=EMPTY_PATH.replace(".", r"\.")):
        parser(JOBS, "logstore pipeline").parse_args([*words, ""])
