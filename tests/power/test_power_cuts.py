"""Scripts of the crash campaign on file systems of the kernel, and planted bugs (`make power-cuts`, root)."""

from __future__ import annotations

import pytest

from logstore.disk.files import OsDisk, OsFile
from tests.power.__main__ import explored, on_devices
from tests.power.block_device import KINDS

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("kind", KINDS)
def test_no_promise_is_broken(kind: str) -> None:
    with on_devices(kind, moments=5):
        assert explored(kind, "roll", seed=1) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_sync_that_does_nothing_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsFile, "sync", lambda _file, *, data_only=False: None)
    with on_devices(kind, moments=20):
        assert explored(kind, "append_durable", seed=1) > 0


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_missing_sync_of_a_directory_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on ext4: the sync of any file there makes all earlier changes of names durable."""
    monkeypatch.setattr(OsDisk, "sync_dir", lambda _disk, _directory: None)
    with on_devices(kind, moments=40):
        assert explored(kind, "roll", seed=0) > 0
