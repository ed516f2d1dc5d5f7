"""`python -m tests.suites`: run other projects' suites against three brokers; exit 1 on the unexpected."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.kafka.jars import Missing
from tests.interop.cluster import Cluster, running
from tests.suites import applications, kafka_python, tools, transactions
from tests.suites.verdict import Result, Verdict, judge, read_expected

_SUITES: Mapping[str, tuple[Callable[[Cluster, Path], dict[str, Result]], Mapping[str, str]]] = {
    "kafka-python": (kafka_python.run, kafka_python.SETTINGS),
    **{
        f"kafka-tools-{version}": (partial(tools.run, version, [*tools.CHECKS, *transactions.CHECKS]), {})
        for version in tools.VERSIONS
    },
    **{
        f"kafka-applications-{version}": (partial(applications.run, version), applications.SETTINGS)
        for version in applications.VERSIONS
    },
}
_EXPECTED = Path(__file__).with_name("expected.toml")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("--only", choices=list(_SUITES), help="one suite")
    parser.add_argument("--json", action="store_true", help="print one JSON object a suite")
    options = parser.parse_args(arguments)
    expected = read_expected(_EXPECTED.read_text())
    bad = False
    for suite in [options.only] if options.only else list(_SUITES):
        directory = Path(tempfile.mkdtemp(prefix=f"{suite}-"))
        suite_run, settings = _SUITES[suite]
        try:
            with running(3, directory, settings, first_id=0) as cluster:
                results = suite_run(cluster, directory)
                cluster.check()
        except Missing as error:
            shutil.rmtree(directory)
            print(f"skipped: {suite}: {error}", file=sys.stderr)
            continue
        verdict = judge(suite, results, expected)
        _show(verdict, as_json=options.json)
        if verdict.holds:
            shutil.rmtree(directory)
        else:
            bad = True
            print(f"what it said, and the brokers' logs, are in {directory}", file=sys.stderr)
    return 1 if bad else 0


def _show(verdict: Verdict, *, as_json: bool) -> None:
    lists = {
        "unexpected failures": verdict.unexpected_failures,
        "unexpected passes": verdict.unexpected_passes,
        "entries that match no test": verdict.never_run,
    }
    if as_json:
        print(json.dumps({"suite": verdict.suite, "counts": verdict.counts(), **lists}), flush=True)
        return
    counts = ", ".join(f"{count} {what}" for what, count in verdict.counts().items())
    print(f"{verdict.suite}: {counts}", flush=True)
    for what, names in lists.items():
        for name in names:
            print(f"  {what}: {name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
