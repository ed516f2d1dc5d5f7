"""numpy is imported when it is first used, and only then (decision 116)."""

from __future__ import annotations

import subprocess
import sys

import numpy
import pytest

from logstore.lazily import np


def test_it_is_numpy() -> None:
    assert np.dtype is numpy.dtype
    assert np.testing is numpy.testing, "numpy imports this one late itself"
    with pytest.raises(AttributeError, match="no_such_name"):
        np.no_such_name  # type: ignore[attr-defined]  # noqa: B018


def test_after_the_first_use_nothing_of_ours_runs() -> None:
    program = (
        "import sys; from logstore.lazily import np; assert 'numpy' not in sys.modules; np.dtype; "
        "import numpy; missing = vars(numpy).keys() - vars(np).keys(); sys.exit(', '.join(missing) or 0)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(
    "package", ["logstore", "logstore.broker", "logstore.queue", "logstore.spark", "logstore.testing"]
)
def test_a_prompt_completes_public_names(package: str) -> None:
    """Before their first use, too: `dir` of a new process listed the submodules alone."""
    program = (
        f"import {package} as package; listed = set(dir(package)); "
        "import sys; sys.exit(', '.join(set(package.__all__) - listed) or 0)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("number", ["SIGINT", "SIGALRM", "SIGTERM"])
def test_a_signal_meanwhile_waits_until_it_is_imported(number: str) -> None:
    """A half-imported numpy cannot be imported again: every read of the process would fail."""
    program = """
import signal, sys
from logstore.lazily import np

number = signal.Signals[sys.argv[1]]
signal.signal(number, signal.default_int_handler)  # as any handler that raises

class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "numpy.linalg":
            sys.meta_path.remove(self)
            signal.raise_signal(number)

sys.meta_path.insert(0, Interrupts())
try:
    np.dtype
except KeyboardInterrupt:
    print("interrupted", "numpy" in sys.modules, np.dtype("i4"), signal.getsignal(number).__name__)
"""
    found = subprocess.run(
        [sys.executable, "-c", program, number], capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.stderr) == ("interrupted True int32 default_int_handler\n", "")


def test_where_no_signal_can_be_held_back_it_is_imported_all_the_same() -> None:
    """In a subinterpreter it was refused with "signal only works in main thread of the main interpreter"."""
    program = """
import signal

def refuse(number, handler):
    raise ValueError("signal only works in main thread of the main interpreter")

signal.signal = refuse
from logstore.lazily import np
print(np.dtype("i4"))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("int32\n", "")


@pytest.mark.parametrize("left", [5, 15, 40, 60, 80, 100])
def test_near_the_recursion_limit_it_is_not_imported_by_half(left: int) -> None:
    """Half imported, it was refused from then on: "cannot load module more than once per process"."""
    program = """
import sys
from logstore.lazily import np

def deeper(levels):
    if levels:
        deeper(levels - 1)
    else:
        np.dtype

try:
    deeper(sys.getrecursionlimit() - int(sys.argv[1]))
except RecursionError:
    print("numpy" in sys.modules, np.dtype("i4"))
"""
    found = subprocess.run(
        [sys.executable, "-c", program, str(left)], capture_output=True, text=True, check=False
    )
    assert (found.stdout, found.stderr) == ("False int32\n", "")
