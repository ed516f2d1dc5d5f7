"""The example does what its page says, in few lines."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/job_queue.py"
MOST_LINES = 15


def test_every_job_is_done_once_and_the_bad_one_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(EXAMPLE))["main"](str(tmp_path / "jobs"))
    lines = capsys.readouterr().out.splitlines()
    done = sorted(int(line.split()[1]) for line in lines if " done" in line)
    assert done == [number for number in range(20) if number != 13]
    assert "dead: 13: nobody likes this one" in lines
    assert "urgent 0 done, delivery 2" in lines


def test_it_takes_few_lines_of_logstore() -> None:
    """Counted: every line that names the package, the queue, or a message's fields."""
    source = EXAMPLE.read_text()
    names = {"logstore", "Queue", "QueueConfig", "Message", "queue", "message", "letter"}
    lines = {
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.ImportFrom) and node.module == "logstore")
    }
    assert 8 <= len(lines) <= MOST_LINES, sorted(lines)
