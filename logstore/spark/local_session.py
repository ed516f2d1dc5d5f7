"""A local Spark session in which the format `logstore` is found, and a topic as a frame of it."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from logstore.loggers import logger_of
from logstore.spark.brief_errors import end_with_reason
from logstore.spark.errors import PythonUnfit
from logstore.spark.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logger_of(__name__)

_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",  # a task starts in 18 ms instead of 45 ms
    "spark.sql.python.filterPushdown.enabled": "true",
}


def session(
    name: str = "logstore", *, master: str = "local[*]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the active session, or start one on this host; stop it when it is no longer needed.

    Spark runs its Python workers with the `python3` on PATH, where the format may not be installed. This
    session's workers run the Python of this program, unless PYSPARK_PYTHON names another. It listens on
    loopback only. `settings` are `spark.…` settings of a new session; those of an active one stay, and a
    warning names those that differ. An error of ours that ends the program
    is printed once more as its last line, below Spark's traces. Raises `JavaMissing` and `PythonUnfit`.
    """
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        kept = [each for each, value in (settings or {}).items() if active.conf.get(each, None) != value]
        if kept:
            _log.warning("a Spark session is active, so these settings have no effect: %s", ", ".join(kept))
        return active
    check_java()
    check_workers(os.environ.setdefault("PYSPARK_PYTHON", sys.executable))
    end_with_reason()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**_LOCAL, **(settings or {})}.items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    if not _is_listed():
        from logstore.spark.data_source import LogstoreDataSource

        started.dataSource.register(LogstoreDataSource)
    return started


def _is_listed() -> bool:
    """Return whether Spark finds the format: not if the package was installed from a checkout, as editable.

    Spark lists the modules in a process that has this one's working directory for the script's on its path.
    """
    path = [os.getcwd(), *sys.path[1:]]
    return any(module.name == "pyspark_logstore" for module in pkgutil.iter_modules(path))


_PROBE: Final = (
    "import sys; from importlib.util import find_spec; "
    "print(*sys.version_info[:2], *(each for each in ('pyspark', 'logstore') if not find_spec(each)))"
)


def check_workers(python: str) -> None:
    """Raise `PythonUnfit` unless Spark's workers can run with `python`, a path or a command of PATH."""
    if python == sys.executable:
        return
    how = f"set PYSPARK_PYTHON to {sys.executable}, or remove it"
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PythonUnfit(f"PYSPARK_PYTHON is {python}, which does not run ({error}): {how}") from error
    major, minor, *missing = done.stdout.split()
    if missing:
        raise PythonUnfit(f"PYSPARK_PYTHON is {python}, which lacks {' and '.join(missing)}: {how}")
    if (int(major), int(minor)) != sys.version_info[:2]:
        raise PythonUnfit(
            f"PYSPARK_PYTHON is Python {major}.{minor}, this program {sys.version_info[0]}."
            f"{sys.version_info[1]}; Spark needs the same: {how}"
        )


def table(
    topic: str,
    *,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    brokers: str = "",
    **options: str,
) -> DataFrame:
    """Return the records of a topic, from log dirs or brokers (`host:port,…`), as a frame of `session()`.

    `options` are those of a read; call again for new records. Spark raises `AnalysisException` with the text
    of `InvalidOption`, and when the frame is used one with that of `UnknownTopic`.
    """
    reader = session().read.format("logstore").option("subscribe", topic).options(**options)
    if brokers:
        reader = reader.option("kafka.bootstrap.servers", brokers)
    paths = [os.fspath(each) for each in ([path] if isinstance(path, str | os.PathLike) else path)]
    return reader.load(paths) if paths else reader.load()
