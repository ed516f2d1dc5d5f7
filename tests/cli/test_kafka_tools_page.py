"""docs/kafka-tools.md names verbs and options that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from logstore.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "kafka-tools.md"
ROOT = typer.main.get_command(app)


def commands() -> list[str]:
    """What stands in backticks in the last column, and begins with a verb."""
    cells = [line.split(" | ", 1)[1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = [each for cell in cells for each in re.findall(r"`([^`]+)`", cell)]
    return sorted({each for each in found if each.split()[0] in ROOT.commands})  # type: ignore[attr-defined]


def unknown(text: str) -> list[str]:
    """The options of a command that its verb does not have."""
    words, verb = shlex.split(text), ROOT
    while words and (known := getattr(verb, "commands", None)) is not None:
        verb = known[words.pop(0)]
    options = {option for each in verb.params for option in each.opts}
    return [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]


@pytest.mark.parametrize("text", commands())
def test_a_command_of_the_page_exists(text: str) -> None:
    assert unknown(text) == []


def test_there_are_many_and_a_wrong_one_is_noticed() -> None:
    assert len(commands()) > 60
    assert unknown("topics describe --at-max-isr") == ["--at-max-isr"]
    with pytest.raises(KeyError):
        unknown("topics paint")
