"""Find the Java that Spark will start, and check its version first.

Spark answers a missing or old Java with a page of stack traces. `python -m logstore.spark.java` prints one
line and exits with 1 instead, for scripts that check before they begin.
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
    f"Spark needs Java {OLDEST} or newer: run 'apt-get install openjdk-17-jre-headless' on Debian or Ubuntu, "
    "'brew install openjdk@17' on macOS, or set JAVA_HOME"
)


class JavaMissing(EngineError):
    """No Java on this host can run Spark. The message explains how to install one."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


def java_command(environment: Mapping[str, str]) -> str | None:
    """Return the `java` that Spark's scripts would start: the one in JAVA_HOME, else the one on PATH."""
    if home := environment.get("JAVA_HOME"):
        return os.path.join(home, "bin", "java")
    return shutil.which("java", path=environment.get("PATH", os.defpath))


def major_version(output: str) -> int | None:
    """Return 17 for `openjdk version "17.0.15"`, 8 for `java version "1.8.0_402"`, else None."""
    found = _VERSION.search(output)
    return int(found[1]) if found else None


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    """Raise `JavaMissing` unless Spark can run on this host's Java. Runs `java -version`: about 100 ms."""
    command = java_command(environment)
    if command is None:
        raise JavaMissing(f"no Java found. {_HOW}")
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, check=False, errors="replace"
        )
    except OSError as error:
        raise JavaMissing(f"cannot start {command} ({error.strerror}). {_HOW}") from error
    version = major_version(done.stderr + done.stdout)
    if done.returncode or version is None:
        raise JavaMissing(f"{command} -version does not print a version. {_HOW}")
    if version < OLDEST:
        raise JavaMissing(f"{command} is Java {version}. {_HOW}")


if __name__ == "__main__":
    try:
        check_java()
    except JavaMissing as problem:
        sys.exit(str(problem))
