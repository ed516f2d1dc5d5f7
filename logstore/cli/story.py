"""`logstore story`: failure scenarios of replication, step by step, on the real engine.

Each story is played with one rule of the engine in force, and with it switched off. What is printed and drawn
is read from the replicas after each step. Nothing is written but the file of `--svg`.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.cli.operating import Json
from logstore.cli.terminal import print_json

if TYPE_CHECKING:
    from logstore.testing.stories.telling import Story


class RuleIs(StrEnum):
    """Whether the story's rule is in force."""

    ON = "on"
    OFF = "off"
    BOTH = "both"


def story(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The story; without one, or with list: all names.")
    ] = None,
    rule: Annotated[
        RuleIs,
        typer.Option("--rule", help="Play with the rule in force, switched off, or both, off first."),
    ] = RuleIs.BOTH,
    step: Annotated[bool, typer.Option("--step", help="Wait for Enter after each step.")] = False,
    as_json: Json = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Also write the drawing of all steps.")
    ] = None,
) -> int:
    """Play a failure scenario on the real engine, with its rule off and on."""
    from logstore.testing.stories.catalogue import STORIES
    from logstore.testing.stories.telling import drawn, facts, paragraphs, play

    if name in (None, "list"):
        if svg is not None or step:
            raise typer.BadParameter("--svg and --step need the NAME of a story")
        _list(list(STORIES.values()), as_json=as_json)
        return 0
    assert name is not None, "listed above"
    if name not in STORIES:
        raise typer.BadParameter(f"no story {name!r}; choose from {', '.join(STORIES)}")
    if step and as_json:
        raise typer.BadParameter("--step and --json cannot be combined")
    if step and sys.stdin is None:  # the shell closed it (`<&-`)
        raise OSError("stdin is closed")
    modes = [False, True] if rule is RuleIs.BOTH else [rule is RuleIs.ON]
    played = [play(STORIES[name], is_on=is_on) for is_on in modes]
    if svg is not None:
        svg.write_text(drawn(played), encoding="utf-8")
    for told in played:
        if as_json:
            for fact in facts(told):
                print_json(fact)
            continue
        for text in paragraphs(told):
            print(text)
            if step:
                sys.stdin.readline()
    return 0


def _list(stories: list[Story[Any]], *, as_json: bool) -> None:
    width = max(len(each.name) for each in stories)
    for each in stories:
        if as_json:
            print_json({"story": each.name, "title": each.title, "on": each.rule, "off": each.off})
        else:
            print(f"{each.name:<{width}}  {each.title}")
