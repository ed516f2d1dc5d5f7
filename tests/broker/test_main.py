"""`python -m broker` before it runs; three of them run in `test_three_processes.py`."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from broker.__main__ import main, serve
from broker.limits import Address
from broker.settings import read_settings
from checkpoint.clean_shutdown import read_clean_shutdown
from checkpoint.disks.memory import MemoryDisk
from replication.effects import StoreCall
from replication.metastore.operations import Create
from tests.broker.nodes import SharedStore, StoreEnd

GOOD = {"--node-id": "1", "--listen": "127.0.0.1:0", "--log-dirs": "d", "--metadata": "zookeeper://127.0.0.1:1"}


def arguments(**changed: str) -> list[str]:
    named = {**GOOD, **{f"--{name.replace('_', '-')}": value for name, value in changed.items()}}
    return [part for pair in named.items() for part in pair]


@pytest.mark.parametrize(
    ("name", "value"),
    [("listen", "nowhere"), ("listen", ":1"), ("listen", "h:70000"), ("node_id", "one"), ("set", "name")],
)
def test_what_cannot_be_read_is_bad_usage(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments(**{name: value}))
    assert caught.value.code == 2
    assert value in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"set": "no.such.setting=1"}, "no.such.setting"),
        ({"metadata": "etcd://somewhere"}, "etcd://somewhere"),
        ({"log_dirs": "/dev/null/logs"}, "/dev/null/logs"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    changed: dict[str, str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments(**changed)) == 2
    errors = capsys.readouterr().err.splitlines()
    assert complaint in errors[-1]
    assert errors[-1].startswith("error: ")


class _Broken(StoreEnd):
    """Answers the questions before the start, and fails the node that begins."""

    def submit(self, call: StoreCall) -> None:
        if isinstance(call.operation, Create) and call.operation.ephemeral:
            raise AssertionError("a promise of ours")
        super().submit(call)


@pytest.mark.parametrize(("store", "code"), [(StoreEnd, 0), (_Broken, 1)])
def test_the_code_tells_an_order_from_a_failure(
    store: type[StoreEnd], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGTERM is an order; a node that cannot go on is none (F3), and leaves no mark of a clean stop."""
    disk = MemoryDisk()
    settings = read_settings(
        {"controlled.shutdown.retry.backoff.ms": "10"}, node_id=1, host="127.0.0.1", port=0
    )

    async def run() -> int:
        shared = SharedStore()
        serving = asyncio.create_task(
            serve(settings, Address("127.0.0.1", 0), ["data"], lambda tell: store(shared, tell), disk=disk)
        )
        async with asyncio.timeout(20):
            while not serving.done() and not capsys.readouterr().out:
                await asyncio.sleep(0.002)
            if not serving.done():
                os.kill(os.getpid(), signal.SIGTERM)
            return await serving

    assert asyncio.run(run()) == code
    assert (read_clean_shutdown(disk, "data") is not None) == (code == 0)
