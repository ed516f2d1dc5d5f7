"""`logstore pipeline JOB …`: jobs on logs, done by Spark. Their options are in spark/jobs/command.py."""

from __future__ import annotations

import typer

ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The verb's settings: all that follows it, `--help` included, is the job's."""


def pipeline(context: typer.Context) -> int:
    """Export, compact, profile, verify logs with Spark: `logstore pipeline --help`."""
    from logstore.spark.jobs.command import main

    return main(context.args, "logstore pipeline")
