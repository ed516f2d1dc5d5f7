"""`python -m tests.fuzz TARGET RUNS`: a campaign guided by coverage, with atheris; `make fuzz` runs all.

What breaks a promise is left as a file `crash-…` where it was started, and `python -m tests.fuzz TARGET FILE`
runs it again; with the fix it becomes a case of `tests/hostile`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["broker"]):
    from logstore.broker.wire import codec, compiling
    from tests.fuzz import targets

import pytest

_LONGEST_BYTES = 4096


def main(target: str, what: str) -> None:
    def instrumented(*arguments: Any, **named: Any) -> Any:
        """What is compiled of declarations counts as well."""
        return atheris.instrument_func(compiling.compiled(*arguments, **named))

    patch = pytest.MonkeyPatch()
    patch.setattr(codec, "compiled", instrumented)
    targets.with_few_partitions(patch)
    run = targets.Served() if target == "served" else getattr(targets, target)
    if not what.isdecimal():
        run(Path(what).read_bytes())
        return
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.SEEDS[target]()):
            (Path(corpus) / f"{number:05}").write_bytes(seed[:_LONGEST_BYTES])
        options = [
            f"-runs={what}",
            "-seed=1",
            f"-max_len={_LONGEST_BYTES}",
            "-print_final_stats=1",
            "-verbosity=1",
        ]
        atheris.Setup([sys.argv[0], *options, "-rss_limit_mb=2048", "-timeout=60", corpus], run)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
