"""A disk of each kind, for the tests of its contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.disk.files import Disk, File
from tests.contracts.disk_contract import DISKS


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[request.param]()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = f"{tmp_path}/data"
    disk.make_dir(path)
    return path


@pytest.fixture
def file(disk: Disk, root: str) -> Iterator[File]:
    opened = disk.open(f"{root}/file", create=True, write=True)
    yield opened
    opened.close()
