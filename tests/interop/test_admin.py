"""Administration: topics, settings, records, replicas."""

from __future__ import annotations

import pytest

from tests.interop.kit import Kit, refused, until, values, written
from tests.interop.seam import Partition, Refused

pytestmark = pytest.mark.interop

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
SECURITY_DISABLED = 54
ELECTION_NOT_NEEDED = 84
NO_REASSIGNMENT_IN_PROGRESS = 85
TOPIC, STATIC, DEFAULT = 1, 4, 5


def test_create_topic(kit: Kit) -> None:
    name = kit.fresh()
    kit.admin.create_topic(name, partitions=3, factor=kit.size)
    kit.until_ready(name, 3)
    found = kit.admin.describe_topic(name)
    assert all(set(each.replicas) == set(kit.cluster.brokers) for each in found)
    if kit.size == 3:
        assert len({each.leader for each in found}) == 3, "leaders are spread"


def test_create_topic_with_the_defaults(kit: Kit) -> None:
    """-1 and -1: the broker's number of partitions, and of replicas."""
    name = kit.fresh()
    kit.admin.create_topic(name)
    kit.until_ready(name)
    assert len(kit.admin.describe_topic(name)) == 1


def test_create_topic_with_an_assignment(kit: Kit) -> None:
    brokers = kit.cluster.brokers
    wanted = [[brokers[-1]], [brokers[0]], [brokers[kit.size // 2]]]
    topic = kit.topic(assignment=wanted)
    assert [list(each.replicas) for each in kit.admin.describe_topic(topic)] == wanted


def test_create_topic_with_settings(kit: Kit) -> None:
    topic = kit.topic(configs={"retention.ms": "123456", "cleanup.policy": "compact,delete"})
    found = kit.admin.describe_topic_config(topic)
    assert found["retention.ms"].value == "123456"
    assert found["cleanup.policy"].value == "compact,delete"


def test_create_topic_to_see_whether_it_could_be(kit: Kit) -> None:
    name = kit.fresh()
    kit.admin.create_topic(name, partitions=1, factor=1, validate_only=True)
    assert name not in kit.admin.topics()
    with refused(INVALID_REPLICATION_FACTOR):
        kit.admin.create_topic(name, partitions=1, factor=9, validate_only=True)


def test_create_topic_that_exists(kit: Kit) -> None:
    topic = kit.topic()
    with refused(TOPIC_ALREADY_EXISTS):
        kit.admin.create_topic(topic, partitions=1, factor=1)


@pytest.mark.parametrize("name", ["with space", "..", "a" * 250, "ümlaut"])
def test_create_topic_with_a_bad_name(kit: Kit, name: str) -> None:
    with refused(INVALID_TOPIC):
        kit.admin.create_topic(name, partitions=1, factor=1)


def test_create_topic_with_too_many_replicas(kit: Kit) -> None:
    with refused(INVALID_REPLICATION_FACTOR):
        kit.admin.create_topic(kit.fresh(), partitions=1, factor=kit.size + 1)


def test_create_topic_with_no_partitions(kit: Kit) -> None:
    with refused(INVALID_PARTITIONS):
        kit.admin.create_topic(kit.fresh(), partitions=0, factor=1)


def test_create_topic_with_the_same_broker_twice(kit: Kit) -> None:
    broker = kit.cluster.brokers[0]
    with refused(INVALID_REPLICA_ASSIGNMENT):
        kit.admin.create_topic(kit.fresh(), assignment=[[broker, broker]])


@pytest.mark.parametrize("setting", [("retention.ms", "soon"), ("no.such.setting", "1")])
def test_create_topic_with_a_bad_setting(kit: Kit, setting: tuple[str, str]) -> None:
    with refused(INVALID_CONFIG):
        kit.admin.create_topic(kit.fresh(), partitions=1, factor=1, configs=dict([setting]))


def test_create_many_partitions(kit: Kit) -> None:
    topic = kit.topic(30)
    assert len(kit.admin.describe_topic(topic)) == 30


def test_delete_topic(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(3))
    kit.admin.delete_topic(topic)
    until(lambda: topic not in kit.admin.topics(), "nobody lists it any more")


def test_delete_topic_and_make_it_again(kit: Kit) -> None:
    """Its namesake is empty."""
    topic = kit.topic()
    kit.fill(topic, values(3, "old"))
    kit.admin.delete_topic(topic)

    def made() -> bool:
        try:
            kit.admin.create_topic(topic, partitions=1, factor=kit.size)
        except Refused as error:
            if error.code != TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    until(made, "its replicas are gone and its name is free")
    kit.until_ready(topic)
    kit.fill(topic, values(2, "new"))
    assert written(kit.read(topic, 2)) == values(2, "new")


def test_delete_unknown_topic(kit: Kit) -> None:
    with refused(UNKNOWN_TOPIC_OR_PARTITION):
        kit.admin.delete_topic(kit.fresh())


def test_list_topics(kit: Kit) -> None:
    topics = {kit.topic(), kit.topic()}
    assert topics <= kit.admin.topics()


def test_describe_topic(kit: Kit) -> None:
    (found,) = kit.admin.describe_topic(kit.topic())
    assert found.leader in kit.cluster.brokers
    assert found.isr == set(found.replicas) == set(kit.cluster.brokers)


def test_describe_unknown_topic(kit: Kit) -> None:
    """And asking about it does not make it."""
    name = kit.fresh()
    with refused(UNKNOWN_TOPIC_OR_PARTITION):
        kit.admin.describe_topic(name)


def test_describe_cluster(kit: Kit) -> None:
    found = kit.admin.describe_cluster()
    assert found.cluster_id
    assert found.controller in kit.cluster.brokers
    assert found.brokers == kit.cluster.addresses
    assert kit.admin.describe_cluster().cluster_id == found.cluster_id


def test_create_partitions(kit: Kit) -> None:
    topic = kit.topic(1)
    kit.admin.create_partitions(topic, 3)
    kit.until_ready(topic, 3)
    kit.fill(topic, values(2), partition=2)


def test_create_partitions_with_an_assignment(kit: Kit) -> None:
    topic = kit.topic(1)
    replicas = list(reversed(kit.cluster.brokers))
    kit.admin.create_partitions(topic, 2, assignment=[replicas])
    kit.until_ready(topic, 2)
    assert list(kit.admin.describe_topic(topic)[1].replicas) == replicas


@pytest.mark.parametrize("total", [1, 2])
def test_create_partitions_that_are_there(kit: Kit, total: int) -> None:
    topic = kit.topic(2)
    with refused(INVALID_PARTITIONS):
        kit.admin.create_partitions(topic, total)


def test_create_partitions_of_an_unknown_topic(kit: Kit) -> None:
    with refused(UNKNOWN_TOPIC_OR_PARTITION):
        kit.admin.create_partitions(kit.fresh(), 2)


def test_describe_topic_config(kit: Kit) -> None:
    topic = kit.topic(configs={"retention.ms": "1000"})
    found = kit.admin.describe_topic_config(topic)
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("1000", TOPIC)
    assert (found["segment.ms"].value, found["segment.ms"].source) == ("604800000", DEFAULT)
    assert not found["retention.ms"].is_read_only
    assert {"cleanup.policy", "compression.type", "max.message.bytes", "min.insync.replicas"} <= set(found)


def test_describe_config_of_an_unknown_topic(kit: Kit) -> None:
    topic = kit.topic()
    kit.admin.describe_topic_config(topic)
    assert topic in kit.admin.topics()


def test_describe_broker_config(kit: Kit) -> None:
    broker = kit.cluster.brokers[-1]
    found = kit.admin.describe_broker_config(broker)
    assert found["broker.id"].value == str(broker)
    given = found["zookeeper.session.timeout.ms"]
    assert (given.value, given.source, given.is_read_only) == ("3000", STATIC, True)


def test_alter_config(kit: Kit) -> None:
    topic = kit.topic()
    kit.admin.alter_config(topic, {"retention.ms": "5000"})
    until(lambda: kit.admin.describe_topic_config(topic)["retention.ms"].value == "5000", "the new setting")


def test_alter_config_replaces_the_rest(kit: Kit) -> None:
    topic = kit.topic(configs={"segment.bytes": "1048576"})
    kit.admin.alter_config(topic, {"retention.ms": "5000"})
    until(
        lambda: kit.admin.describe_topic_config(topic)["segment.bytes"].source == DEFAULT,
        "what was not named has its default again",
    )


def test_alter_config_badly(kit: Kit) -> None:
    topic = kit.topic()
    with refused(INVALID_CONFIG):
        kit.admin.alter_config(topic, {"retention.ms": "soon"})


def test_alter_config_of_an_unknown_topic(kit: Kit) -> None:
    with refused(UNKNOWN_TOPIC_OR_PARTITION):
        kit.admin.alter_config(kit.fresh(), {"retention.ms": "1"})


def test_change_config(kit: Kit) -> None:
    topic = kit.topic(configs={"segment.bytes": "1048576"})
    kit.admin.change_config(topic, put={"retention.ms": "5000"})
    found = kit.admin.describe_topic_config(topic)
    assert (found["retention.ms"].value, found["segment.bytes"].value) == ("5000", "1048576")


def test_change_config_back_to_the_default(kit: Kit) -> None:
    topic = kit.topic(configs={"retention.ms": "5000"})
    kit.admin.change_config(topic, delete=["retention.ms"])
    assert kit.admin.describe_topic_config(topic)["retention.ms"].source == DEFAULT


def test_change_a_list_in_the_config(kit: Kit) -> None:
    topic = kit.topic()
    kit.admin.change_config(topic, append={"cleanup.policy": "compact"})
    assert kit.admin.describe_topic_config(topic)["cleanup.policy"].value == "delete,compact"
    kit.admin.change_config(topic, subtract={"cleanup.policy": "delete"})
    assert kit.admin.describe_topic_config(topic)["cleanup.policy"].value == "compact"


def test_altered_config_is_obeyed(kit: Kit) -> None:
    """Not only told: the replicas' logs hear of it."""
    topic = kit.topic()
    kit.admin.alter_config(topic, {"max.message.bytes": "1000"})

    def refuses() -> bool:
        try:
            kit.fill(topic, [bytes(2_000)])
        except Refused as error:
            if error.code != MESSAGE_TOO_LARGE:
                raise
            return True
        return False

    until(refuses, "a message that is too large now is refused")


def test_delete_records(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    of = Partition(topic, 0)
    assert kit.admin.delete_records(of, 4) == 4
    assert kit.admin.delete_records(of, 2) == 4
    assert written(kit.read(topic, 6)) == values(10)[4:]


def test_delete_all_records(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(10))
    assert kit.admin.delete_records(Partition(topic, 0), -1) == 10
    kit.fill(topic, [b"next"])
    (record,) = kit.read(topic, 1)
    assert (record.offset, record.value) == (10, b"next")


def test_delete_records_beyond_the_end(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(3))
    with refused(OFFSET_OUT_OF_RANGE):
        kit.admin.delete_records(Partition(topic, 0), 4)


def test_describe_log_dirs(kit: Kit) -> None:
    topic = kit.topic(2)
    kit.fill(topic, [bytes(10_000)], partition=1)
    found = kit.admin.log_dirs()
    assert set(found) == set(kit.cluster.brokers)
    for replicas in found.values():
        assert replicas[Partition(topic, 1)] > 10_000 > replicas[Partition(topic, 0)]


def test_elect_a_leader_that_leads(kit: Kit) -> None:
    topic = kit.topic()
    with refused(ELECTION_NOT_NEEDED):
        kit.admin.elect_preferred(Partition(topic, 0))


def test_elect_preferred_leader(kit: Kit) -> None:
    topic = kit.topic()
    preferred = kit.admin.describe_topic(topic)[0].replicas[0]
    kit.cluster.stop(preferred)
    try:
        until(lambda: kit.leader(topic) not in (preferred, -1), "another leads")
    finally:
        kit.cluster.start(preferred)
    kit.until_ready(topic)
    kit.admin.elect_preferred(Partition(topic, 0))
    until(lambda: kit.leader(topic) == preferred, "the preferred leader leads again")


def test_reassign(kit: Kit) -> None:
    one, two, three = kit.cluster.brokers
    topic = kit.topic(assignment=[[one, two]])
    kit.fill(topic, values(10))
    of = Partition(topic, 0)
    kit.admin.reassign(of, [three, two])
    until(lambda: of not in kit.admin.reassignments(), "the reassignment is over")
    until(lambda: kit.admin.describe_topic(topic)[0].replicas == (three, two), "the new replicas are told")
    kit.until_ready(topic)
    assert written(kit.read(topic, 10)) == values(10)


def test_reassign_to_an_unknown_broker(kit: Kit) -> None:
    topic = kit.topic()
    with refused(INVALID_REPLICA_ASSIGNMENT):
        kit.admin.reassign(Partition(topic, 0), [99])


def test_call_off_no_reassignment(kit: Kit) -> None:
    topic = kit.topic()
    with refused(NO_REASSIGNMENT_IN_PROGRESS):
        kit.admin.reassign(Partition(topic, 0), None)


def test_list_no_reassignments(kit: Kit) -> None:
    assert kit.admin.reassignments() == set()


def test_list_offsets(kit: Kit) -> None:
    topic = kit.topic()
    kit.fill(topic, values(5))
    of = Partition(topic, 0)
    kit.admin.delete_records(of, 2)
    assert kit.admin.list_offset(of, -2) == 2
    assert kit.admin.list_offset(of, -1) == 5
    assert kit.admin.list_offset(of, -3) in range(2, 5)
    assert kit.admin.list_offset(of, 1) == 2


def test_describe_acls(kit: Kit) -> None:
    with refused(SECURITY_DISABLED):
        kit.admin.describe_acls()


def test_create_acls(kit: Kit) -> None:
    with refused(SECURITY_DISABLED):
        kit.admin.create_acl()


def test_delete_acls(kit: Kit) -> None:
    with refused(SECURITY_DISABLED):
        kit.admin.delete_acls()
