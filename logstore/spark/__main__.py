"""Run a job: `python -m logstore.spark JOB …` or `spark-submit … logstore/spark/__main__.py JOB …`."""

from __future__ import annotations

import os
import sys

if not __debug__:
    sys.exit("logstore: refuses to run under python -O, which removes checks that protect data; omit -O")

if not __package__:
    # Run as a file, Python puts this directory first on the path; our imports need the package's parent.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from logstore.spark.jobs.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
