"""The command line of all jobs, with three entry points:

    logstore pipeline JOB …                            logstore/cli/main.py
    python -m logstore.spark JOB …                     without the extra `cli`
    spark-submit … logstore/spark/__main__.py JOB …    in the submitted session, on its master

A job is a module of the form `job.Job`; an entry in `JOBS` makes it a command. Nothing heavy is imported
before a job runs, so that `--help` is fast.

Exit codes: 0 done; 1 the answer is "no", or the job failed; 2 invalid command line. Answers go to stdout
(`--json`: one object on one line), progress and errors to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from logstore.arguments import EMPTY_PATH, names_path
from logstore.disk.clocks import steady_s
from logstore.disk.errors import EngineError, InvalidTopic
from logstore.disk.extras import how_to_install
from logstore.spark.brief_errors import is_sparks, quiet_loggers, reason, reason_of_files, reason_of_spark
from logstore.spark.errors import InvalidOption
from logstore.spark.jobs import (
    compact,
    export,
    ingest,
    merge_state_changes,
    profile,
    repair,
    replay,
    stream,
    tier,
    verify,
)
from logstore.spark.jobs.job import Answer, BadUsage, Job, Prepared, named_values
from logstore.spark.jobs.signals import job_signals
from logstore.spark.jobs.work import Progress, Workers, WorkFailed

DONE, NO, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130


JOBS: Final[Mapping[str, Job]] = {
    "export": export,
    "ingest": ingest,
    "stream": stream,
    "replay": replay,
    "tier": tier,
    "compact": compact,
    "profile": profile,
    "merge-state-changes": merge_state_changes,
    "verify": verify,
    "repair": repair,
}

_WRONG_SETTING: Final = "[INVALID_CONF_VALUE"
_OF_PANDAS: Final = "PySpark does not yet fully support pandas"
_CRASHED: Final = "Python worker exited unexpectedly"


class _Once(argparse._StoreAction):
    """An option that may be given once: a second value would silently replace the first."""

    _is_given = False

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if self._is_given:
            raise argparse.ArgumentError(self, "is given twice; give it once")
        self._is_given = True
        super().__call__(parser, namespace, values, option_string)


class _Parser(argparse.ArgumentParser):
    """Raises `BadUsage` with one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register("action", None, _Once)

    def error(self, message: str) -> NoReturn:
        raise BadUsage(f"{message} (see {self.prog} --help)")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if names_path(action.metavar) and "" in arg_strings:
            raise argparse.ArgumentError(action, EMPTY_PATH)
        return super()._get_values(action, arg_strings)


def parser(jobs: Mapping[str, Job], program: str) -> argparse.ArgumentParser:
    """Return the command line of all jobs."""
    top = _Parser(prog=program, description="Run jobs on logs with Spark.")
    verbs = top.add_subparsers(metavar="JOB", dest="job", required=True)
    for name, job in jobs.items():
        verb = verbs.add_parser(name, help=job.HELP, description=f"{job.HELP[0].upper()}{job.HELP[1:]}.")
        job.arguments(verb)
        shared = verb.add_argument_group("execution")
        shared.add_argument("--plan", action="store_true", help="print what the job would do; change nothing")
        shared.add_argument("--json", action="store_true", help="print one JSON object")
        shared.add_argument("--master", metavar="URL", help="Spark's master (default: local[*])")
        shared.add_argument(
            "--conf", metavar="NAME=VALUE", action="append", default=[], help="a Spark setting; repeatable"
        )
    return top


def main(
    arguments: Sequence[str], program: str = "python -m logstore.spark", jobs: Mapping[str, Job] = JOBS
) -> int:
    """Run one command line and return its exit code."""
    try:
        options = parser(jobs, program).parse_args(list(arguments) or ["--help"])
        prepared = jobs[options.job].prepare(options)
        answer = prepared.plan() if options.plan else _run(prepared, options)
    except SystemExit as end:  # argparse, after a help page
        return int(end.code or DONE)
    except (BadUsage, InvalidOption, InvalidTopic) as error:
        return _complain(str(error), BAD_USAGE)
    except (EngineError, OSError) as error:
        return _complain(str(error), NO)
    except ModuleNotFoundError as error:
        if (advice := how_to_install(error)) is None:
            raise
        return _complain(advice, NO)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    if options.json:
        print(json.dumps(answer.facts, separators=(", ", ": ")))
    else:
        for line in answer.lines:
            print(line)
    return DONE if answer.is_yes else NO


def _run(prepared: Prepared, options: argparse.Namespace) -> Answer:
    settings = named_values("--conf", options.conf)
    progress = Progress(sys.stderr, steady_s)
    workers = Workers(progress, master=options.master, settings=settings)
    with job_signals(), workers, quiet_loggers(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", _OF_PANDAS, FutureWarning)  # no job uses pandas
        try:
            return prepared.run(workers)
        except Exception as error:
            if (text := _reason_in_spark(error)) is None:
                raise
            raise WorkFailed(text) from error


def _reason_in_spark(error: Exception) -> str | None:
    """Return one line for an error of Spark; None for others, and where nothing is known but its traces."""
    if not is_sparks(error):
        return None
    text = reason(error)
    if text is None and _CRASHED in str(error):
        return "a Python process of Spark has died, perhaps for lack of memory: run the same command again"
    if text is None and _WRONG_SETTING in str(error):
        return reason_of_spark(error)
    return text or reason_of_files(error)


def _complain(text: str, code: int) -> int:
    print("logstore: " + " ".join(text.split("\n")), file=sys.stderr, flush=True)
    return code
