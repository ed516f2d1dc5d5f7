"""The names that programs import from `logstore.spark`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import logstore.spark
from logstore.spark import errors as room


@pytest.mark.parametrize("name", logstore.spark.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert getattr(logstore.spark, name).__doc__


def test_every_error_of_the_room_is_public() -> None:
    """A program that catches them imports them from one place."""
    errors = {name for name, value in vars(room).items() if isinstance(value, type)}
    assert errors - set(logstore.spark.__all__) == {"EngineError", "ErrorCode"}


def test_importing_the_package_imports_no_spark() -> None:
    code = "import sys, logstore.spark; sys.exit(bool({'pyspark', 'numpy', 'pyarrow'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)
