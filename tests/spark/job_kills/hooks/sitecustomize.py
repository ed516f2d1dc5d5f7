"""Imported by every Python that finds it on PYTHONPATH: Spark's Python workers then fail as a plan says.

A daemon of Spark forks its workers. Nothing with threads may be imported before the fork.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _watch() -> None:
    from pyspark import TaskContext

    from tests.spark.job_kills.strikes import WORKERS, Watch, again_path, install

    plan = Path(os.environ["LOGSTORE_JOB_KILLS_PLAN"])

    def is_task() -> bool:
        context = TaskContext.get()
        if context is not None and context.attemptNumber() > 0:
            again_path(plan).touch()
        return context is not None

    install(Watch(plan, WORKERS, is_task))


if "pyspark.daemon" in sys.orig_argv and "LOGSTORE_JOB_KILLS_PLAN" in os.environ:
    os.register_at_fork(after_in_child=_watch)
