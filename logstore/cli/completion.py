"""`logstore completion SHELL`: print the script with which a shell completes verbs, options and file names.

The shell then calls `logstore` with `_LOGSTORE_COMPLETE` set, at each Tab; typer answers.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

ASKED = "_LOGSTORE_COMPLETE"
"""The environment variable by which a shell asks for completions."""


class Shell(StrEnum):
    """The shells that are served."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")],
) -> int:
    """Print a script that makes a shell complete this command's verbs and options.

    Write it where the shell looks: for bash ~/.local/share/bash-completion/completions/logstore, for zsh
    _logstore in a directory of $fpath, for fish ~/.config/fish/completions/logstore.fish.
    """
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name="logstore", complete_var=ASKED, shell=shell.value))
    return 0


def prepare() -> None:
    """Let typer answer if a shell asks for completions: the command line is then not run."""
    if ASKED in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
