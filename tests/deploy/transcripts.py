"""Transcripts in pages: commands after `$ `, continued after `> `, and what they print.

`…` is whatever varies within a line; a line of it alone, any lines. A command may end in `# exit code 1`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.page_runner import Block, blocks_of

_EXIT = re.compile(r" +# exit code (\d+)$")


class Step(NamedTuple):
    """A command of a page, with what the page shows of it."""

    line: int
    command: str
    shown: str
    code: int = 0


def steps_of(page: Path) -> list[Step]:
    """The steps of all transcripts of a page, in order."""
    transcripts = [block for block in blocks_of(page) if block.code.startswith("$ ")]
    return [step for block in transcripts for step in _steps(block)]


def _steps(block: Block) -> Iterator[Step]:
    for number, text in enumerate(re.split(r"^\$ ", block.code, flags=re.MULTILINE)[1:]):
        first, *rest = text.splitlines()
        code = _EXIT.search(first)
        continued = 0
        while continued < len(rest) and rest[continued].startswith(">"):
            continued += 1
        command = [_EXIT.sub("", first), *(line[2:] for line in rest[:continued])]
        shown = "".join(f"{line}\n" for line in rest[continued:])
        yield Step(block.line + number, "\n".join(command), shown, int(code[1]) if code else 0)


def is_as_shown(shown: str, printed: str) -> bool:
    """Whether a command printed what the page shows."""
    parts = [
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"[ ]*\n"
        for line in shown.splitlines()
    ]
    return re.fullmatch("".join(parts), printed) is not None


class Shell:
    """One bash in a folder, with `logstore` and `python` of an interpreter: variables and jobs stay."""

    def __init__(self, folder: Path, python_path: Iterable[Path], python: str = sys.executable) -> None:
        self._folder = folder
        commands = folder / ".commands"
        commands.mkdir()
        for name, module in (("logstore", " -m logstore.cli.main"), ("python", "")):
            path = commands / name
            path.write_text(f'#!/bin/sh\nexec {python}{module} "$@"\n')
            path.chmod(0o755)
        known = {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join([*map(str, python_path), os.environ.get("PYTHONPATH", "")]),
        }
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env={**os.environ, **known},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str) -> tuple[int, str]:
        """Run a command; return its exit code and what it printed, errors too."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        step, printed = self._folder / ".step", self._folder / ".printed"
        step.write_text(f"{command}\n")
        self._bash.stdin.write("source ./.step > .printed 2>&1 < /dev/null; echo $?\n")
        self._bash.stdin.flush()
        return int(self._bash.stdout.readline()), printed.read_text()

    def close(self) -> None:
        """End the shell; its jobs, too, if any is left."""
        self.run("kill $(jobs -p)")
        self._bash.communicate()
