"""`python -m tests.judge`: random operations on our log and on Apache Kafka's, step by step.

Prints each seed whose answers, states or files differ, with the operations that show it; exit 1 if there is
one. Such a plan can be run again with `--plan`.
"""

from __future__ import annotations

import sys

from tests.judge.command import Judge, main
from tests.judge.drawing import draw
from tests.judge.sides import Kafka
from tests.judge.trial import run

if __name__ == "__main__":
    sys.exit(main(Judge("tests.judge", __doc__, Kafka, draw, run), sys.argv[1:]))
