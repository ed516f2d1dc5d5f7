"""Spark runs on Java: whether a new enough one is here, asked before Spark is started.

Spark's own answer to a missing or an old Java is a page of traces. `python -m logstore.spark.java` prints
the line and ends with 1, for scripts that want to know before they begin.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from logstore.disk.errors import EngineError, ErrorCode

OLDEST: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_HOW: Final = (
    f"Spark needs Java {OLDEST} or newer: on Debian and Ubuntu 'apt-get install openjdk-17-jre-headless', "
    "on macOS 'brew install openjdk@17'; or set JAVA_HOME to where it is"
)


class JavaMissing(EngineError):
    """No Java that Spark can run on; the message says how to get one."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


def java_command(environment: Mapping[str, str]) -> str | None:
    """The `java` that Spark would start, as its own scripts choose: that of JAVA_HOME, else that on PATH."""
    if home := environment.get("JAVA_HOME"):
        return os.path.join(home, "bin", "java")
    return shutil.which("java", path=environment.get("PATH", os.defpath))


def major_version(told: str) -> int | None:
    """17 of `openjdk version "17.0.15"`, 8 of `java version "1.8.0_402"`; None of anything else."""
    found = _VERSION.search(told)
    return int(found[1]) if found else None


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raise `JavaMissing` unless there is one that Spark can run on. Starts `java -version`: some 100 ms."""
    command = java_command(environment)
    if command is None:
        raise JavaMissing(f"there is no Java here. {_HOW}")
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, check=False, errors="replace"
        )
    except OSError as error:
        raise JavaMissing(f"{command} cannot be started ({error.strerror}). {_HOW}") from error
    version = major_version(done.stderr + done.stdout)
    if done.returncode or version is None:
        raise JavaMissing(f"{command} -version does not say its version. {_HOW}")
    if version < OLDEST:
        raise JavaMissing(f"{command} is Java {version}. {_HOW}")


if __name__ == "__main__":
    try:
        check_java()
    except JavaMissing as problem:
        sys.exit(str(problem))
