"""Commands in blocks of text and in sentences of the pages: the parser of `logstore` accepts each."""

from __future__ import annotations

import io
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from logstore.cli.main import app
from logstore.spark.jobs.command import JOBS, parser
from logstore.spark.jobs.job import BadUsage
from logstore.testing.__main__ import parser_of
from tests.page_runner import blocks_of

ROOT = Path(__file__).parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "TRACK_RECORD.md"})
ENDS = {"|", "||", "&", "&&", ";", ">", "2>", "<"}
"""Words of the shell behind a command."""
PLACEHOLDERS = re.compile(r"…|\.\.\.|[<\[{]|\bVERB\b|\bJOB\b|\w\|\w")
"""Placeholders: a text with one of them shows the form of a command."""


def commands_of_blocks(page: Path) -> Iterator[str]:
    """The lines of blocks of text that are commands; blocks of `sh` are run."""
    for block in blocks_of(page):
        if block.language == "text":
            for line in re.sub(r"\\\n\s*", " ", block.code).splitlines():
                command = re.split(r"\s#\s|\s{4,}", line.strip().removeprefix("$ "))[0]
                if command.startswith("logstore "):
                    yield command


def commands_in_sentences(page: Path) -> Iterator[str]:
    if page.parent.name == "decisions":
        return  # they also name commands that were decided against
    outside = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    yield from (" ".join(found.split()) for found in re.findall(r"`(logstore [^`]+)`", outside))


def refusal(command: str) -> str:
    """Return what the parser objects to in a command; empty for a valid one.

    The values are not judged: files are not here, and names in capitals stand for values. A sentence names a
    verb, or one of its options, without the others.
    """
    words = command_words(command)
    if words[:1] == ["pipeline"]:
        return unknown_to(parser(JOBS, "logstore pipeline"), words[1:])
    if words[:1] == ["simulate"]:
        return unknown_to(parser_of("logstore simulate"), words[1:])
    verb = all_verbs()
    while words and hasattr(verb, "commands") and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in verb.commands:
            return f"there is no verb {name}"
        verb = verb.commands[name]
    options = {name for each in verb.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    return f"{verb.name} has no {', '.join(unknown)}" if unknown else ""


def unknown_to(parser: ArgumentParser, words: list[str]) -> str:
    told = io.StringIO()
    try:
        with redirect_stderr(told):
            parser.parse_args(words)
    except BadUsage as error:
        told.write(str(error))
    except SystemExit:
        pass
    missing = re.search("required|expected one argument", told.getvalue())
    return "" if missing else told.getvalue()


@cache
def all_verbs() -> Any:
    return typer.main.get_command(app)


def command_words(command: str) -> list[str]:
    words = shlex.split(command)[1:]
    return words[: next((at for at, word in enumerate(words) if word in ENDS), len(words))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_parse(page: Path) -> None:
    found = [*commands_of_blocks(page), *commands_in_sentences(page)]
    refused = {each: refusal(each) for each in found if not PLACEHOLDERS.search(each)}
    assert {command: why for command, why in refused.items() if why} == {}


def test_there_are_many_of_them() -> None:
    assert sum(len([*commands_of_blocks(page)]) for page in PAGES) >= 150
    assert sum(len([*commands_in_sentences(page)]) for page in PAGES) >= 100


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("logstore verfy data", "no verb verfy"),
        ("logstore topics create orders --partition 6", "no --partition"),
        ("logstore pipeline export data --output lake --rate-limt 5", "rate-limt"),
        ("logstore simulate --seed 7 --event 900 --traces", "traces"),
        ("logstore verify data --json | jq", ""),
        ("logstore --version", ""),
        ("logstore pipeline export data --output lake", ""),
    ],
)
def test_a_wrong_word_is_noticed(command: str, why: str) -> None:
    found = refusal(command)
    assert why in found
    assert bool(found) == bool(why)
