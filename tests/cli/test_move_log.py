"""`logstore brokers move-log` against a broker with two log dirs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.broker import Broker, BrokerConfig
from logstore.broker.identity import LogDirMissing
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


def test_a_log_dir_is_given_up_once_its_replicas_were_moved(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    """It took an editor in `meta.properties`; a replica that was forgotten would have begun anew, empty."""
    both = (str(tmp_path / "a"), str(tmp_path / "b"))
    with Broker(BrokerConfig(log_dirs=both)) as broker:
        made = ("topics", "create", "t", "--partitions", 2, "--bootstrap", broker.bootstrap)
        assert command(*made, "--wait", 30).code == 0
        broker.append("t", b"kept", partition=1)
        away = next(path.name for path in (tmp_path / "b").glob("t-*"))
    with (
        pytest.raises(LogDirMissing, match=f"no log in the dirs named: {away}$"),
        Broker(BrokerConfig(log_dirs=both[:1])),
    ):
        pass
    with Broker(BrokerConfig(log_dirs=both)) as broker:
        moving = ("brokers", "move-log", away, "--broker", broker.node_id, "--to", f"{both[0]}/")
        moved = command(*moving, "--bootstrap", broker.bootstrap, "--wait", 30)
        assert (moved.code, moved.out) == (0, f"{away} is in {both[0]} of broker {broker.node_id}\n")
    with Broker(BrokerConfig(log_dirs=both[:1])) as broker:
        assert [record.value for record in broker.read("t", 1, 0)] == [b"kept"]
