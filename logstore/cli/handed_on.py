"""Verbs that pass their arguments on: `logstore pipeline JOB …` and `logstore simulate …`.

The options are declared where the work is: in spark/jobs/command.py and testing/__main__.py.
"""

from __future__ import annotations

import typer

ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of these verbs: everything that follows, including `--help`, belongs to the job."""


def pipeline(context: typer.Context) -> int:
    """Export, replay, compact, verify or repair logs with Spark; see `logstore pipeline --help`."""
    from logstore.spark.jobs.command import main

    return main(context.args, "logstore pipeline")


def simulate(context: typer.Context) -> int:
    """Run simulated clusters under seeds and report violations; see `logstore simulate --help`."""
    from logstore.testing.__main__ import main

    return main(context.args, "logstore simulate")
