"""`python -m tests.model`: explore the rows, print the table and the counterexamples.

python -m tests.model                       the rows of the test suite
python -m tests.model --long                all of them; `make model` is this
python -m tests.model --row without-R6      some of them
python -m tests.model --json                one object a row
"""

from __future__ import annotations

import argparse
import json
import sys

from logstore.disk.files import wall_clock_ms
from tests.model.rows import ROWS, Row
from tests.model.transcript import transcript


def main(arguments: list[str] | None = None) -> int:
    """The command; returns 1 if a row came out otherwise than it says."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description="Explore the protocol.")
    parser.add_argument("--row", action="append", choices=sorted(ROWS), metavar="NAME", help="only this row")
    parser.add_argument("--long", action="store_true", help="long rows too")
    parser.add_argument("--json", action="store_true", help="one object a row")
    options = parser.parse_args(arguments)
    rows = [ROWS[name] for name in options.row or ROWS]
    if not options.row and not options.long:
        rows = [row for row in rows if not row.is_long]
    if not options.json:
        print("row                 level    states transitions depth seconds  verdict")
    traces: list[str] = []
    all_met = True
    for row in rows:
        met, text = _report(row, as_json=options.json)
        all_met = all_met and met
        if text:
            traces.append(f"{row.name}: {row.title}\n{text}\n")
    for trace in traces:
        print(f"\n{trace}", end="")
    return 0 if all_met else 1


def _report(row: Row, *, as_json: bool) -> tuple[bool, str]:
    began_ms = wall_clock_ms()
    found = row.explore()
    seconds = (wall_clock_ms() - began_ms) / 1000
    met = row.is_met_by(found)
    steps = max(len(found.trace) - 1, 0)
    text = transcript(found.trace) if found.violation else ""
    if as_json:
        facts = {
            "row": row.name,
            "title": row.title,
            "level": row.level,
            "states": found.states,
            "transitions": found.transitions,
            "depth": found.depth,
            "is_exhausted": found.is_exhausted,
            "violation": found.violation,
            "steps": steps,
            "as_expected": met,
            "seconds": seconds,
            "trace": text.splitlines(),
        }
        print(json.dumps(facts), flush=True)
        return met, ""
    verdict = f"fails after {steps} steps: {found.violation}" if found.violation else "holds"
    if not met:
        verdict += "  UNEXPECTED"
    figures = f"{found.states:>9,} {found.transitions:>11,} {found.depth:>5} {seconds:>7.1f}"
    print(f"{row.name:19} {row.level:5} {figures}  {verdict}", flush=True)
    return met, f"     {found.violation}\n{text}" if text else ""


if __name__ == "__main__":
    sys.exit(main())
