"""docs/operators-hour.md: every command as it stands, on real processes, beside what the page shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.cli.cluster_file import FILE
from logstore.cli.local_cluster import stop
from tests.deploy.serving import ROOT
from tests.deploy.transcripts import Shell, is_as_shown, steps_of

PAGE = ROOT / "docs" / "operators-hour.md"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    opened = Shell(tmp_path, [ROOT])
    yield opened
    opened.close()
    if (tmp_path / "demo" / FILE).exists():
        stop(tmp_path / "demo", patience_s=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_operators_hour(shell: Shell) -> None:
    """Nothing that was acknowledged is lost, and each command prints what the page shows."""
    for step in steps_of(PAGE):
        code, printed = shell.run(step.command)
        assert code == step.code, f"{step.command}: exit code {code}\n{printed}"
        said = f"{step.command} printed:\n{printed}instead of:\n{step.shown}"
        assert is_as_shown(step.shown, printed), said
        if step.command == "python check.py $B":
            assert int(printed.split()[0]) > 100, "there was load"


def test_the_page_has_all_that_an_hour_is_made_of() -> None:
    commands = "\n".join(step.command for step in steps_of(PAGE))
    wanted = (
        "cluster start",
        "topics create",
        "load.py",
        "cluster stop demo $node",
        "rm -r demo/node-3",
        "cluster add",
        "reassign execute",
        "snapshot",
        "compat",
        "cluster pause",
        "why",
        "check.py",
    )
    places = [commands.index(each) for each in wanted]
    assert places == sorted(places)


def test_steps_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    loop = "$ for a in 1; do\n>   b\n> done\none\n"
    page.write_text(f"```text\n{loop}$ c | d    # exit code 1\n```\n```text\n$ x\n```\n")
    assert [(step.command, step.shown, step.code) for step in steps_of(page)] == [
        ("for a in 1; do\n  b\ndone", "one\n", 0),
        ("c | d", "", 1),
        ("x", "", 0),
    ]


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("a … c\n", "a b c\n", True),
        ("a … c\n", "a b\nc\n", False),
        ("…\nlast\n", "one\ntwo\nlast\n", True),
        ("…\nlast\n", "last\n", True),
        ("…\nlast\n", "one\n", False),
        ("first\n", "first\nsecond\n", False),
        ("", "", True),
        ("", "an error\n", False),
    ],
)
def test_what_varies(shown: str, printed: str, expected: bool) -> None:
    assert is_as_shown(shown, printed) is expected


def test_a_shell_keeps_variables_and_jobs(shell: Shell) -> None:
    assert shell.run("A=1; sleep 60 & JOB=$!") == (0, "")
    assert shell.run("echo $A; kill $JOB") == (0, "1\n")
    assert shell.run("false") == (1, "")
    assert shell.run("python -c 'print(2)'") == (0, "2\n")
