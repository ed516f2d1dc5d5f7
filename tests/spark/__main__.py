"""The Spark tests again, with executors that are real processes: `make spark`.

    local-cluster   a master and two workers that Spark starts itself, 1 GiB each
    standalone      a master and two workers in processes of their own, as on several hosts; the workers have
                    two addresses of this host, so that Spark takes them for two hosts

Arguments are handed on to pytest. Exit code 0 if the suite is green on both.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from logstore.cli.ports import free_ports
from tests.spark.spark_home import installed_home, linked_home

START_S = 60.0


@contextmanager
def _spark_process(
    log: Path, arguments: Sequence[str], ready: str, environment: dict[str, str]
) -> Iterator[None]:
    """One of Spark's own servers; returns when its log has a line that matches `ready`."""
    command = [str(installed_home() / "bin" / "spark-class"), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        deadline = time.monotonic() + START_S
        while not re.search(ready, log.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(arguments[:1])} does not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def standalone_master() -> Iterator[str]:
    """A master and two workers; the master's address."""
    (port,) = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    with tempfile.TemporaryDirectory(prefix="logstore-spark-") as name:
        directory = Path(name)
        environment = {
            **os.environ,
            "SPARK_HOME": str(linked_home(directory / "home")),
            "SPARK_LOG_DIR": name,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "512m",
        }
        options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        started = r"I have been elected leader"
        arguments = [f"{package}.master.Master", *options]
        with (
            _spark_process(directory / "master.log", arguments, started, environment),
            _worker(directory, 1, master, environment),
            _worker(directory, 2, master, environment),
        ):
            yield master


def _worker(
    directory: Path, number: int, master: str, environment: dict[str, str]
) -> AbstractContextManager[None]:
    options = ["--host", f"127.0.0.{number}", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
    options += ["--work-dir", str(directory / f"work-{number}"), master]
    arguments = ["org.apache.spark.deploy.worker.Worker", *options]
    return _spark_process(
        directory / f"worker-{number}.log", arguments, "Successfully registered with master", environment
    )


def run(master: str, arguments: Sequence[str]) -> int:
    """The suite on `master`; pytest's exit code."""
    print(f"--- {master}", flush=True)
    chosen = ["-p", "no:benchmark", "-m", "spark and not slow", "tests/spark"]
    return subprocess.call(
        [sys.executable, "-m", "pytest", *chosen, *arguments],
        env={**os.environ, "LOGSTORE_SPARK_MASTER": master},
    )


def main(arguments: Sequence[str]) -> int:
    outcomes = [run("local-cluster[2,1,1024]", arguments)]
    with standalone_master() as master:
        outcomes.append(run(master, arguments))
    return max(outcomes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
