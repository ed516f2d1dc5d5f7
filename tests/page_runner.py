"""Run the code blocks of pages in order, in the current folder, as a reader would.

    python tests/page_runner.py PAGE... [--spark]

Each page starts with its own namespace and an empty folder: the files of the page before it are removed.
Several pages in one process share a JVM. The Python blocks of a page share its namespace. Shell blocks run
line by line. Blocks for pytest are run by pytest. Blocks that need Spark run only with `--spark`, the others
only without it.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
ABOUT_SPARK = {"spark.md", "spark-jobs.md"}
"""Pages whose blocks all need Spark."""

LANGUAGES = {"python", "sh", "text", "json", "properties"}
"""`text` is output or a drawing; every other language is run or parsed."""


class Block(NamedTuple):
    language: str
    line: int
    code: str

    def needs_spark(self) -> bool:
        return "pyspark" in self.code or "spark." in self.code or "spark_logs" in self.code

    def is_for_pytest(self) -> bool:
        return self.language == "python" and "import pytest" in self.code


def blocks_of(page: Path) -> list[Block]:
    """Every fenced block of a page. A fence without a language is an error."""
    found: list[Block] = []
    language, start, lines = "", 0, list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if match := re.match(r" *```(\w*)\s*$", line):
            if start:
                found.append(Block(language, start, "\n".join(lines) + "\n"))
                start, lines = 0, []
            else:
                language, start = match[1], number
        elif start:
            lines.append(line)
    assert not start, f"{page}: the block at line {start} has no end"
    return found


def check(block: Block) -> None:
    """Parse what cannot be run. Raises for a language that nothing checks."""
    assert block.language in LANGUAGES, f"line {block.line}: {block.language or 'no language'}"
    if block.language == "json":
        json.loads(block.code)
    elif block.language == "properties":
        for line in block.code.splitlines():
            assert not line or line.startswith("#") or re.fullmatch(r"[\w.-]+=.*", line), line
    elif block.language == "python":
        compile(block.code, "block", "exec")


def run_shell(code: str) -> None:
    """Run each line: `logstore` in this process, `make` as a dry run; an installation is only checked."""
    from logstore.cli.main import run

    for line in code.replace("\\\n", " ").splitlines():
        command = line.split(" #")[0].strip()
        if not command:
            continue
        source, _, command = command.rpartition(" | ")
        words = shlex.split(command)
        if source:
            given = subprocess.run(["bash", "-c", source], check=True, capture_output=True).stdout
            sys.stdin = io.TextIOWrapper(io.BytesIO(given))
        match words:
            case ["logstore", *arguments]:
                assert run(arguments) == 0, line
            case ["make", *targets]:
                subprocess.run(["make", "-n", *targets], cwd=ROOT, check=True, capture_output=True)
            case ["python", "-m", module, *arguments] if module.startswith("logstore"):
                subprocess.run([sys.executable, "-m", module, *arguments], check=True)
            case ["python", example, *arguments] if example.startswith("examples/"):
                subprocess.run([sys.executable, str(ROOT / example), *arguments], check=True)
            case ["printf" | "cp", *_]:
                subprocess.run(["bash", "-c", command], check=True)
            case ["pip", "install", *names]:
                assert all(re.fullmatch(r"(\.|pylogstore|kafka-python)(\[[\w,]+\])?", name) for name in names)
            case _:
                raise AssertionError(f"no runner for this command: {line}")


def run_pytest(block: Block) -> None:
    """Run a block of tests with the plugins that the package brings."""
    Path("test_page.py").write_text(block.code)
    plugins = ["-p", "logstore.testing.pytest_plugin", "-p", "logstore.broker.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, "test_page.py"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, check=True, env=environment)


def run_page(page: Path, *, spark: bool) -> None:
    """Run the page's blocks."""
    whole_page = page.name in ABOUT_SPARK
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(page):
        check(block)
        if (whole_page or block.needs_spark()) is not spark:
            continue
        print(f"--- {page.name}:{block.line}", flush=True)
        if block.is_for_pytest():
            run_pytest(block)
        elif block.language == "python":
            exec(compile(block.code, f"{page.name}:{block.line}", "exec"), names)
        elif block.language == "sh":
            run_shell(block.code)


def empty(folder: Path) -> None:
    """Remove everything in the folder."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def main(arguments: list[str]) -> None:
    """Run the pages. Raises for a folder that is not empty: it might be somebody's."""
    assert not any(Path().iterdir()), "run this in an empty folder"
    for page in (each for each in arguments if not each.startswith("--")):
        run_page(Path(page), spark="--spark" in arguments)
        empty(Path())


if __name__ == "__main__":
    main(sys.argv[1:])
