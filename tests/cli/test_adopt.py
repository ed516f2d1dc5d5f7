"""`logstore adopt`: the directories of Kafka clusters under a store of ours."""

from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition

from logstore import Log, LogReader, Record, encode_batch
from logstore.broker import Broker, BrokerConfig
from logstore.checkpoint import MetaProperties, write_meta_properties
from logstore.disk.files import OsDisk
from logstore.disk.topic_partition import TopicPartition
from logstore.format.batch import walk
from logstore.format.state_records import Decoded
from logstore.replication.adoption import (
    AdoptedPartition,
    AdoptedTopic,
    Directory,
    Image,
    image_of_records,
    leave_out_lost,
)
from tests.cli.conftest import Outcome
from tests.cli.conftest import snapshot as content_of
from tests.golden.kafka_directories import unpack

Command = Callable[..., Outcome]
KRAFT_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


def test_a_kraft_directory_is_planned_adopted_and_served(command: Command, tmp_path: Path) -> None:
    log_dir = unpack("kraft-dir", tmp_path)
    before = content_of(tmp_path)
    written = [list(LogReader(log_dir / f"orders-{each}", start_offset=0).records()) for each in range(2)]
    plan = command("adopt", log_dir)
    assert plan.code == 0, plan.err
    assert "plan only; --apply writes" in plan.out
    assert content_of(tmp_path) == before, "a plan changes nothing"
    done = command("adopt", log_dir, "--apply", "--json")
    facts = json.loads(done.out)
    assert facts["written"] is True
    assert Path(f"{log_dir}.metadata").stat().st_mode & 0o777 == 0o700
    assert facts["topics"]["orders"] == {
        "topic_id": "q1rQ-zzUQr-NxhUuceaPjg",
        "settings": {"max.message.bytes": "2000000", "retention.ms": "86400000"},
    }
    assert "gone" not in facts["topics"], "it was deleted"
    assert facts["partitions"]["moved-0"] == {"replicas": [1], "isr": [1], "leader_epoch": 2}
    assert {name: data for name, data in content_of(tmp_path).items() if "metadata/" not in name} == {
        name: data for name, data in before.items() if "metadata/" not in name
    }, "nothing of Kafka's was changed"
    again = command("adopt", log_dir, "--apply")
    assert again.code == 2
    with Broker(BrokerConfig(log_dirs=(str(log_dir),))) as broker:
        for partition in range(2):
            found = committed(broker, "orders", partition)
            assert found == written[partition]
            assert len(found) == (61, 29)[partition]
        placed = broker.append("orders", b"from now on ours", partition=2)
        assert placed.offset == 0
        assert broker.durability("moved", 0, 0).is_committed


def test_the_plan_needs_no_writable_file_system(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file of Kafka cannot be opened for writing on a mounted snapshot."""
    log_dir = unpack("kraft-dir", tmp_path)
    (log_dir / ".lock").touch()

    def refuse(_: OsDisk, directory: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", f"{directory}/.lock")

    monkeypatch.setattr(OsDisk, "lock", refuse)
    assert command("adopt", log_dir).code == 0
    refused = command("adopt", log_dir, "--metadata", tmp_path / "store", "--apply")
    assert (refused.code, refused.out) == (1, "")
    assert "Read-only file system" in refused.err
    assert not list(tmp_path.glob("store*"))


def committed(broker: Broker, topic: str, partition: int) -> list[object]:
    found: list[object] = []
    offset = 0
    while records := broker.read(topic, partition, offset):
        found += records
        offset = records[-1].offset + 1
    return found


def old_log_dir(root: Path, broker_id: int, records: int, topic_id: str | None) -> Path:
    """As a broker of the ZooKeeper era leaves it."""
    root.mkdir(parents=True)
    disk = OsDisk()
    write_meta_properties(disk, str(root), MetaProperties(node_id=broker_id, cluster_id="abc"))
    with Log.open(root / "orders-0") as log:
        if topic_id:
            log.partition.set_topic_id(topic_id)
        for number in range(records):
            log.append(b"%d" % number)
    return root


def test_the_newest_metadata_counts_in_whatever_order_the_dirs_are_named(
    command: Command, tmp_path: Path
) -> None:
    """Broker 2 stopped first: it does not know who left an ISR afterwards, and would be elected."""
    newest = unpack("kraft-dir", tmp_path / "newest")
    oldest = tmp_path / "oldest"
    oldest.mkdir()
    named = (newest / "meta.properties").read_text()
    (oldest / "meta.properties").write_text(named.replace("node.id=1", "node.id=2"))
    shutil.copytree(newest / "__cluster_metadata-0", oldest / "__cluster_metadata-0")
    (log,) = (oldest / "__cluster_metadata-0").glob("*.log")
    data = log.read_bytes()
    log.write_bytes(data[: sum(batch.size for batch in walk(data) if batch.last_offset < 60)])
    plans = []
    for dirs in ((newest, oldest), (oldest, newest)):
        done = command("adopt", *dirs, "--metadata", tmp_path / "store", "--json")
        assert done.code == 0, done.err
        plans.append(json.loads(done.out))
    assert plans[0]["partitions"]["state-1"]["isr"] == [1]
    for fact in ("partitions", "topics"):
        assert plans[0][fact] == plans[1][fact]
    note = f"{oldest}/__cluster_metadata-0 ends before {newest}/__cluster_metadata-0, which counts"
    assert note in plans[1]["notes"]


def test_a_transaction_that_nothing_will_end_is_noted(command: Command, tmp_path: Path) -> None:
    log_dir = old_log_dir(tmp_path / "kafka", 1, 3, "AAECAwQFBgcICQoLDA0ODw")
    with Log.open(log_dir / "orders-0") as log:
        for producer_id in (1, 2):
            log.append_batches(
                encode_batch(
                    [Record(0, int(time.time() * 1000), None, b"x")],
                    producer_id=producer_id,
                    producer_epoch=0,
                    base_sequence=0,
                    is_transactional=True,
                )
            )
        log.end_transaction(1, 0, commit=True)
    notes = json.loads(command("adopt", log_dir, "--json").out)["notes"]
    (note,) = [note for note in notes if "orders-0 has a transaction" in note and "since offset 4" in note]
    assert "logstore transactions abort orders-0 --start-offset 4 --bootstrap HOST:PORT" in note
    with Log.open(log_dir / "orders-0") as log:
        log.end_transaction(2, 0, commit=False)
    assert "has a transaction" not in command("adopt", log_dir, "--json").out


def test_a_transaction_of_an_adopted_directory_is_aborted_as_the_note_says(
    command: Command, tmp_path: Path
) -> None:
    root = old_log_dir(tmp_path / "kafka", 1, 1, "AAECAwQFBgcICQoLDA0ODw")
    hour_ago_ms = int(time.time() * 1000) - 3_600_000
    with Log.open(root / "orders-0") as log:
        log.append_batches(
            encode_batch(
                [Record(0, hour_ago_ms, None, b"undecided")],
                producer_id=2,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        )
        log.append(b"later")
    adopted = command("adopt", root, "--metadata", tmp_path / "store", "--apply", "--json")
    (note,) = [each for each in json.loads(adopted.out)["notes"] if "has a transaction" in each]
    words = note.split("once the brokers run: logstore ")[1].split()
    config = BrokerConfig(node_id=1, log_dirs=(str(root),), metadata=f"embedded:{tmp_path / 'store'}")
    with Broker(config) as broker:
        over = ("--bootstrap", broker.bootstrap)
        assert (
            "producer 2  epoch 0  open since offset 1" in command("transactions", "find-hanging", *over).out
        )
        done = command(*words[:-1], broker.bootstrap)
        assert (done.code, done.err) == (0, "")
        assert command("transactions", "find-hanging", *over).code == 0
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            consumer_timeout_ms=20_000,
        )
        consumer.assign([KafkaTopicPartition("orders", 0)])
        assert [each.value for each in islice(consumer, 2)] == [b"0", b"later"]
        consumer.close()


def test_a_member_of_the_isr_without_its_directory_is_left_out() -> None:
    """With an empty log it would be elected, and the others would truncate to it."""
    image = Image("abc")
    image.topics["t"] = AdoptedTopic("id", {n: AdoptedPartition((1, 2, 3), (1, 2, 3)) for n in range(3)})
    found = [
        Directory(1, TopicPartition("t", 0), "id", 0, 5),
        Directory(2, TopicPartition("t", 1), "id", 0, 5),
    ]
    leave_out_lost(image, found, {1, 2})
    assert [each.isr for each in image.topics["t"].partitions.values()] == [(1, 3), (2, 3), (1, 2, 3)]


@pytest.mark.parametrize("stop", ["clean", "killed", "snapshot rotten", "log rotten"])
def test_a_new_producer_has_no_id_that_the_logs_know(command: Command, tmp_path: Path, stop: str) -> None:
    """Its first batch would be answered as a repeat, and not be written."""
    root = tmp_path / "kafka"
    root.mkdir()
    write_meta_properties(OsDisk(), str(root), MetaProperties(node_id=1, cluster_id="abc"))
    record = Record(0, int(time.time() * 1000) - 3_600_000, None, b"kafka's")
    with Log.open(root / "orders-0") as log:
        log.partition.set_topic_id("AAECAwQFBgcICQoLDA0ODw")
        for producer_id in (0, 4_321):
            log.append_batches(
                encode_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0)
            )
        if stop == "killed":
            shutil.copytree(root / "orders-0", tmp_path / "killed")
    if stop == "killed":
        shutil.rmtree(root / "orders-0")
        (tmp_path / "killed").rename(root / "orders-0")
    elif stop == "snapshot rotten":
        for snapshot in (root / "orders-0").glob("*.snapshot"):
            snapshot.write_bytes(b"\xff" + snapshot.read_bytes()[1:])
    elif stop == "log rotten":
        (path,) = (root / "orders-0").glob("*.log")
        rotten = encode_batch([record], producer_id=1 << 62, producer_epoch=0, base_sequence=0)
        path.write_bytes(path.read_bytes() + rotten[:-1] + b"\xff")
    done = command("adopt", root, "--metadata", tmp_path / "store", "--apply")
    assert done.code == 0, done.err
    config = BrokerConfig(node_id=1, log_dirs=(str(root),), metadata=f"embedded:{tmp_path / 'store'}")
    with Broker(config) as broker:
        assert broker.append("orders", b"ours", partition=0).offset == 2
    with Log.open(root / "orders-0") as log:
        assert {each.producer_id for each in log.partition.producers()} == {0, 4_321, 5_000}


def test_directories_of_the_zookeeper_era(command: Command, tmp_path: Path) -> None:
    """Two brokers, one of which is behind: it is no member of the ISR."""
    topic_id = "AAECAwQFBgcICQoLDA0ODw"
    dirs = [old_log_dir(tmp_path / f"kafka-{each}", each, 4 + each, topic_id) for each in (1, 2)]
    facts = json.loads(command("adopt", *dirs, "--metadata", tmp_path / "store", "--apply", "--json").out)
    assert facts["partitions"] == {"orders-0": {"replicas": [1, 2], "isr": [2], "leader_epoch": 0}}
    assert any("settings are not in the directories" in note for note in facts["notes"])
    config = BrokerConfig(node_id=2, log_dirs=(str(dirs[1]),), metadata=f"embedded:{tmp_path / 'store'}")
    with Broker(config) as broker:
        found = [record.value for record in broker.read("orders", 0, 0)]
        assert found == [b"%d" % number for number in range(6)]


def test_what_cannot_be_adopted_is_refused_or_noted(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert command("adopt", tmp_path / "empty").code == 2
    one = old_log_dir(tmp_path / "one", 1, 1, None)
    plan = json.loads(command("adopt", one, "--json").out)
    assert plan["partitions"] == {}
    assert any("no topic id" in note for note in plan["notes"])
    kraft = unpack("kraft-dir", tmp_path)
    refused = command("adopt", one, kraft)
    assert refused.code == 2, "two clusters"
    assert f"{kraft} names MkU3OEVBNTcwNTJENDM2Qk" in refused.err
    with Broker(BrokerConfig(log_dirs=(str(tmp_path / "ours"),))):
        assert command("adopt", tmp_path / "ours").code == 1, "in use"


def record(kind: str, /, **data: object) -> Decoded:
    return Decoded(0, kind, 0, data)


@pytest.mark.parametrize("store", ["zookeeper://one:2181/kafka", "embedded:dir.metadata"])
def test_the_new_store_is_a_directory(command: Command, tmp_path: Path, store: str) -> None:
    refused = command("adopt", unpack("kraft-dir", tmp_path), "--metadata", store, "--apply")
    assert refused.code == 2
    assert f"{store} is not a directory: --metadata takes the directory of the new store" in refused.err


def test_records_are_replayed_as_kraft_does() -> None:
    made = record("TopicRecord", name="t", topicId="id")
    partition = record(
        "PartitionRecord", partitionId=0, topicId="id", replicas=[1, 2], isr=[1, 2], leaderEpoch=3,
        addingReplicas=[], removingReplicas=[],
    )  # fmt: skip
    shrunk = record("PartitionChangeRecord", partitionId=0, topicId="id", isr=[2], leader=2)
    grown = record("PartitionChangeRecord", partitionId=0, topicId="id", isr=[2, 1])
    image = image_of_records("c", [made, partition, shrunk, grown])
    found = image.topics["t"].partitions[0]
    assert (found.replicas, found.isr, found.leader_epoch) == ((1, 2), (2, 1), 4)
    begin, end, abort = (record(f"{each}TransactionRecord") for each in ("Begin", "End", "Abort"))
    assert image_of_records("c", [begin, made, abort]).topics == {}
    assert list(image_of_records("c", [begin, made, end]).topics) == ["t"]
    assert image_of_records("c", [begin, made]).topics == {}, "not ended, not there"
    removed = record("RemoveTopicRecord", topicId="id")
    assert image_of_records("c", [made, partition, removed]).topics == {}
