"""`python -m tests.partition_judge`: random operations on our partition and on Apache Kafka's, step by step.

Prints each seed whose answers or states differ, with the operations that show it; exit 1 if there is one.
Such a plan can be run again with `--plan`.
"""

from __future__ import annotations

import sys

from tests.judge.command import Judge, main
from tests.partition_judge.drawing import draw
from tests.partition_judge.kafka import Kafka
from tests.partition_judge.trial import run

if __name__ == "__main__":
    sys.exit(main(Judge("tests.partition_judge", __doc__, Kafka, draw, run), sys.argv[1:]))
