"""Files that a verb reads, as editors of other systems save them: a byte order mark, other encodings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.cli import users
from logstore.cli.group_resets import read_file
from logstore.cli.operating import properties_of
from logstore.disk.topic_partition import TopicPartition
from logstore.spark.jobs.job import BadUsage
from logstore.spark.jobs.values import _text
from tests.cli.conftest import Outcome

Command = Callable[..., Outcome]

PLAN = '{"version":1,"partitions":[{"topic":"nope","partition":0,"replicas":[1]}]}'
VERBS = (
    ("reassign", "execute"),
    ("reassign", "verify"),
    ("reassign", "cancel"),
    ("reassign", "generate", "--broker-list", "1"),
    ("elect-preferred", "--json-file"),
    ("groups", "reset", "g", "--from-file"),
    ("users", "set", "ann", "--password-file"),
    ("tokens", "renew", "--hmac-file"),
)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_a_file_in_another_encoding_is_named(verb: tuple[str, ...], command: Command, tmp_path: Path) -> None:
    """It was a trace of Python for `reassign`."""
    path = tmp_path / "input"
    path.write_text(PLAN, "utf-16")
    done = command(*verb, path, "--bootstrap", "127.0.0.1:1")
    assert done.code == 2, done
    assert f"{path} is not valid UTF-8 (invalid start byte): convert it to UTF-8" in done.err


def test_a_byte_order_mark_is_no_part_of_a_password(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user could not log in with the password that the file shows."""
    given: list[str] = []
    monkeypatch.setattr(
        users, "give_password", lambda metadata, user, password, *more: given.append(password.reveal())
    )
    path = tmp_path / "password"
    path.write_text("hush\r\n", "utf-8-sig")
    done = command("users", "set", "ann", "--password-file", path, "--metadata", f"embedded:{tmp_path}")
    assert (done.code, given) == (0, ["hush"]), done


def test_a_byte_order_mark_is_no_part_of_a_topic(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    path.write_text("orders,0,5\n", "utf-8-sig")
    assert read_file(path, ["g"]) == {"g": {TopicPartition("orders", 0): 5}}
    path.write_text(PLAN, "utf-8-sig")
    done = command("reassign", "execute", path, "--bootstrap", "127.0.0.1:1")
    assert "JSON" not in done.err, done


def test_a_byte_order_mark_is_no_part_of_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=PLAINTEXT\n", "utf-8-sig")
    assert properties_of(path) == {"security.protocol": "PLAINTEXT"}


def test_files_of_a_job(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text("{}", "utf-8-sig")
    assert _text(str(path)) == "{}"
    path.write_text("{}", "utf-16")
    with pytest.raises(BadUsage, match="is not valid UTF-8"):
        _text(str(path))
