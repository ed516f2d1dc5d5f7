"""What clients do not offer: the whole list of what is left out of the suite, and the reason of each.

A line is true as long as its probe is: `test_absent.py` asks each client whether it still has no such thing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import aiokafka
import confluent_kafka
import kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import IllegalArgumentError
from confluent_kafka.admin import AdminClient
from kafka.net.manager import KafkaConnectionManager

NEEDS_THREE: Final = {
    "leader_moves_while_producing": "one broker has nowhere to move a partition",
    "leader_is_killed_while_producing": "likewise",
    "leader_moves_while_consuming": "likewise",
    "not_enough_replicas_in_sync": "what a topic's one replica may need is one",
    "coordinator_moves": "likewise",
    "elect_preferred_leader": "likewise",
    "reassign": "likewise",
}
"""Behaviour → why it is not run with one broker."""


class Absence(NamedTuple):
    why: str
    is_true: Callable[[], bool]


def _no_method(kind: Any, *names: str) -> Callable[[], bool]:
    return lambda: not any(hasattr(kind, name) for name in names)


def _no_parameter(kind: Any, name: str) -> Callable[[], bool]:
    return lambda: name not in inspect.signature(kind.__init__).parameters


def _no_new_topic_with_defaults() -> bool:
    try:
        NewTopic("t", -1, -1)
    except IllegalArgumentError:
        return True
    return False


def _absences(
    client: str, why: str, is_true: Callable[[], bool], *behaviours: str
) -> dict[tuple[str, str], Absence]:
    return {(client, behaviour): Absence(why, is_true) for behaviour in behaviours}


ABSENT: Final[Mapping[tuple[str, str], Absence]] = {
    **_absences(
        "aiokafka",
        "its administrator has no incremental change of settings",
        _no_method(AIOKafkaAdminClient, "incremental_alter_configs"),
        "change_config",
        "change_config_back_to_the_default",
        "change_a_list_in_the_config",
    ),
    **_absences(
        "aiokafka",
        "its administrator has no elections",
        _no_method(AIOKafkaAdminClient, "elect_leaders"),
        "elect_preferred_leader",
        "elect_a_leader_that_leads",
    ),
    **_absences(
        "aiokafka",
        "its administrator has no reassignments",
        _no_method(AIOKafkaAdminClient, "alter_partition_reassignments", "list_partition_reassignments"),
        "reassign",
        "reassign_to_an_unknown_broker",
        "call_off_no_reassignment",
        "list_no_reassignments",
    ),
    **_absences(
        "aiokafka",
        "its administrator has no log dirs",
        _no_method(AIOKafkaAdminClient, "describe_log_dirs"),
        "describe_log_dirs",
    ),
    **_absences(
        "aiokafka",
        "its administrator lists no offsets",
        _no_method(AIOKafkaAdminClient, "list_offsets", "list_partition_offsets"),
        "list_offsets",
    ),
    **_absences(
        "aiokafka",
        "its administrator knows no ACLs",
        _no_method(AIOKafkaAdminClient, "describe_acls", "create_acls", "delete_acls"),
        "describe_acls",
        "create_acls",
        "delete_acls",
    ),
    **_absences(
        "aiokafka",
        "its administrator deletes no groups",
        _no_method(AIOKafkaAdminClient, "delete_consumer_groups", "delete_groups"),
        "delete_group",
        "delete_group_with_members",
        "delete_unknown_group",
    ),
    **_absences(
        "aiokafka",
        "its administrator changes no committed offsets",
        _no_method(AIOKafkaAdminClient, "alter_consumer_group_offsets", "alter_group_offsets"),
        "alter_group_offsets",
        "alter_group_offsets_with_members",
    ),
    **_absences(
        "aiokafka",
        "its administrator deletes no committed offsets",
        _no_method(AIOKafkaAdminClient, "delete_consumer_group_offsets", "delete_group_offsets"),
        "delete_group_offsets",
        "delete_group_offsets_of_a_subscribed_topic",
    ),
    **_absences(
        "aiokafka",
        "its administrator makes no topics with the broker's defaults",
        _no_new_topic_with_defaults,
        "create_topic_with_the_defaults",
    ),
    **_absences(
        "aiokafka",
        "its administrator has every unknown topic made that it asks about",
        lambda: "auto_topic_creation" not in inspect.getsource(AIOKafkaAdminClient),
        "describe_unknown_topic",
    ),
    **_absences(
        "aiokafka",
        "its producer has every unknown topic made",
        _no_parameter(aiokafka.AIOKafkaProducer, "allow_auto_create_topics"),
        "unknown_topic_that_the_producer_will_not_have_made",
    ),
    **_absences(
        "confluent-kafka",
        "it has no word of the error in an answer to DescribeAcls",
        lambda: confluent_kafka.libversion()[0] <= "2.16.9",
        "describe_acls",
    ),
    **_absences(
        "confluent-kafka",
        "its administrator has no log dirs",
        _no_method(AdminClient, "describe_log_dirs"),
        "describe_log_dirs",
    ),
    **_absences(
        "confluent-kafka",
        "its administrator has no reassignments",
        _no_method(AdminClient, "alter_partition_reassignments", "list_partition_reassignments"),
        "reassign",
        "reassign_to_an_unknown_broker",
        "call_off_no_reassignment",
        "list_no_reassignments",
    ),
    **_absences(
        "confluent-kafka",
        "its administrator deletes no committed offsets",
        _no_method(AdminClient, "delete_consumer_group_offsets", "delete_group_offsets"),
        "delete_group_offsets",
        "delete_group_offsets_of_a_subscribed_topic",
    ),
    **_absences(
        "kafka-python",
        "its producer has the setting, and it never reaches the request",
        lambda: "allow_auto_create_topics" not in KafkaConnectionManager.DEFAULT_CONFIG,
        "unknown_topic_that_the_producer_will_not_have_made",
    ),
    **_absences(
        "kafka-python",
        "what AlterConfigs would take away its administrator puts back in",
        lambda: hasattr(kafka.KafkaAdminClient, "_add_missing_dynamic_configs"),
        "alter_config_replaces_the_rest",
    ),
}
"""(client, behaviour) → why the client cannot show it, and a probe that this is so."""
