"""Whether there is a Java that Spark runs on: the answer is one line, and says how to get one."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.spark.java import JavaMissing, check_java, java_command, major_version


def java_that_says(directory: Path, told: str, code: int = 0) -> Path:
    (directory / "bin").mkdir(parents=True)
    program = directory / "bin" / "java"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{told}\nEND\nexit {code}\n")
    program.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_versions_old_and_new(told: str, version: int | None) -> None:
    """Java counted 1.8 before it counted 9."""
    assert major_version(told) == version


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    """As Spark's own scripts choose; else the check would judge another Java than the one that runs."""
    home = java_that_says(tmp_path / "home", 'openjdk version "17"')
    path = java_that_says(tmp_path / "path", 'openjdk version "21"')
    assert java_command({"JAVA_HOME": str(home), "PATH": f"{path}/bin"}) == f"{home}/bin/java"
    assert java_command({"PATH": f"{path}/bin"}) == f"{path}/bin/java"
    assert java_command({"PATH": str(tmp_path)}) is None


def test_a_java_that_is_new_enough_passes(tmp_path: Path) -> None:
    home = java_that_says(tmp_path / "home", 'openjdk version "17.0.1" 2021-10-19')
    check_java({"JAVA_HOME": str(home), "PATH": "/usr/bin:/bin"})


def test_what_is_wrong_is_one_line_that_says_how_to_get_one(tmp_path: Path) -> None:
    """Missing, not startable, broken and old: the four ways in which Spark would print a page."""
    old = java_that_says(tmp_path / "old", 'java version "1.8.0_402"')
    broken = java_that_says(tmp_path / "broken", 'openjdk version "17"', code=1)
    for environment, said in (
        ({"PATH": str(tmp_path)}, "no Java found"),
        ({"JAVA_HOME": str(tmp_path / "none"), "PATH": ""}, "cannot start .*"),
        ({"JAVA_HOME": str(broken)}, "does not print a version"),
        ({"JAVA_HOME": str(old)}, "is Java 8"),
    ):
        with pytest.raises(JavaMissing, match=said) as raised:
            check_java(environment)
        assert "\n" not in str(raised.value)
        assert "openjdk-17-jre-headless" in str(raised.value)
        assert "JAVA_HOME" in str(raised.value)
