"""`logstore brokers move-log` against a broker with two log dirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from logstore.broker import Broker, BrokerConfig
from tests.cli.conftest import Outcome


def test_a_move_between_log_dirs_is_waited_for(command: Callable[..., Outcome], tmp_path: Path) -> None:
    dirs = (str(tmp_path / "a"), str(tmp_path / "b"))
    with Broker(BrokerConfig(log_dirs=dirs)) as broker:
        at = ("--bootstrap", str(broker.address))
        assert command("topics", "create", "moved", *at, "--wait", 30).code == 0
        broker.append("moved", [b"x" * 100_000] * 60)  # more than one read of a copy
        here = next(each for each in dirs if (Path(each) / "moved-0").exists())
        (there,) = set(dirs) - {here}
        rate = "replica.alter.log.dirs.io.max.bytes.per.second"
        moving = ("brokers", "move-log", "moved-0", "--broker", broker.node_id, "--to", there, *at)
        assert command("configs", "alter", "--all-brokers", "--config", f"{rate}=1", *at).code == 0
        ended = command(*moving, "--wait", 0.1)
        assert (ended.code, ended.out) == (1, "")
        assert f"moved-0 still moves to {there} of broker {broker.node_id}. See logstore brokers" in ended.err
        assert command("configs", "alter", "--all-brokers", "--delete-config", rate, *at).code == 0
        moved = command(*moving, "--wait", 30, "--json")
        assert moved.code == 0
        assert json.loads(moved.out) == {
            "partition": "moved-0", "broker": broker.node_id, "to": there, "error": "NONE", "is_there": True,
        }  # fmt: skip
        assert not (Path(here) / "moved-0").exists()
