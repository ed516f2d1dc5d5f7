"""`Operator` over brokers, by Kafka's admin requests; Apache Kafka's brokers accept the same ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from logstore.broker import client_messages
from logstore.broker.configs import REPLICATION_RATES
from logstore.broker.errors import RequestRefused, RequestUnanswered
from logstore.broker.translation import from_wire, id_from_wire, to_wire
from logstore.broker.wire import types as t
from logstore.cli.brokers import TIMEOUT_S, Brokers, NoController, check
from logstore.cli.cluster_plans import BadPlan, Plan, check_topics
from logstore.cli.cluster_state import Cluster, Topic
from logstore.cli.terminal import print_error
from logstore.cli.throttles import Rates, rates_in
from logstore.disk.errors import ErrorCode
from logstore.disk.topic_partition import TopicPartition
from logstore.replication import messages as m
from logstore.replication.metastore.layout import BrokerRegistration, LeaderAndIsr, TopicAssignment

TOPIC: Final = 2
BROKER: Final = 4
"""Kafka's numbers for kinds of resources."""
SET, DELETE = 0, 1
MIN_ISR: Final = "min.insync.replicas"
SHORT_PATIENCE_S: Final = 5.0
"""The time for the controller when a cluster is looked at that may lack it."""
_OF_THE_TOPIC: Final = 1
"""The source of a setting that a topic has of its own."""
_DEFAULT: Final = 5


class BrokerOperator:
    """The cluster by its brokers."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._has_told_what_is_hidden = False
        self._min_isr: dict[str, int] = {}
        """That of each topic whose settings were read."""

    def read(
        self,
        topics: Iterable[str] | None = None,
        *,
        settings: bool = False,
        may_hide_moves: bool = False,
        may_lack_controller: bool = False,
    ) -> Cluster:
        """As `Operator.read`. If allowed, without an active controller, and without what it alone knows.

        One that is silent is named nevertheless: it is the controller until another one is elected.
        """
        metadata = self._brokers.metadata(None if topics is None else sorted(set(topics)))
        found = {topic.name: topic for topic in metadata.topics if topic.name and not topic.error_code}
        controller = metadata.controller_id if metadata.controller_id >= 0 else None
        try:
            under_way = self._under_way(may_lack_controller=may_lack_controller)
        except RequestUnanswered as error:
            if not may_lack_controller:
                raise
            under_way = m.ListPartitionReassignmentsResponse(ErrorCode.NONE)
            now = -1 if isinstance(error, NoController) else self._brokers.metadata(()).controller_id
            controller = now if now >= 0 else None
        except RequestRefused as error:
            if not may_hide_moves or error.error is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            if not self._has_told_what_is_hidden:
                print_error(f"reassignments and deletions are not shown: {error}")
            self._has_told_what_is_hidden = True
            under_way = m.ListPartitionReassignmentsResponse(ErrorCode.NONE)
        own = self._settings(list(found)) if settings else {}
        return Cluster(
            {each.node_id: _registration(each) for each in metadata.brokers},
            {
                name: _topic(name, topic, own.get(name, {}), under_way.partitions)
                for name, topic in found.items()
            },
            {
                TopicPartition(name, each.partition_index): LeaderAndIsr(
                    each.leader_id, each.leader_epoch, tuple(each.isr_nodes), controller_epoch=-1
                )
                for name, topic in found.items()
                for each in topic.partitions
            },
            controller,
            under_way.deletions,
            unreadable={
                f"topic {topic.name}": ErrorCode(topic.error_code).name
                for topic in metadata.topics
                if topic.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            },
        )

    def _read_to_change(self, topic: str, *, settings: bool = False) -> Cluster:
        """Read a topic for a change that needs rights on it alone: what moves may be hidden, silently."""
        self._has_told_what_is_hidden = True
        return self.read((topic,), settings=settings, may_hide_moves=True)

    def _topics(self) -> Iterable[str]:
        return self.read(may_hide_moves=True).topics

    def min_isr(self, topics: Sequence[str]) -> Mapping[str, int]:
        unread = [name for name in topics if name not in self._min_isr]
        return self._min_isr | min_isr_in(described_settings(self._brokers, TOPIC, unread, keys=[MIN_ISR]))

    def create(
        self,
        name: str,
        settings: Mapping[str, str],
        partitions: int | None,
        replication_factor: int | None,
        assignment: Sequence[tuple[int, ...]] | None,
    ) -> str:
        replicas = tuple(assignment or ())
        topic = m.NewTopic(name, partitions or -1, replication_factor or -1, replicas, configs=settings)
        answer = self._brokers.controller(client_messages.request_of(m.CreateTopicsRequest((topic,))))
        made = answer.topics[0]
        check(made.error_code, f"topic {name}", made.error_message)
        return id_from_wire(made.topic_id)

    def delete(self, name: str) -> None:
        cluster = self._read_to_change(name)
        if name in cluster.doomed:
            return
        check_topics(cluster, (name,), self._topics)
        answer = self._brokers.controller(
            t.DeleteTopicsRequest(
                topic_names=[name], topics=[t.DeleteTopicsRequestDeleteTopicState(name=name)]
            )
        )
        (gone,) = answer.responses
        check(gone.error_code, f"topic {name}", gone.error_message)

    def alter(
        self, name: str, partitions: int | None, changed: Mapping[str, str], dropped: Collection[str]
    ) -> None:
        cluster = self._read_to_change(name, settings=bool(dropped))
        check_topics(cluster, (name,), self._topics)
        if unknown := sorted(set(dropped) - cluster.topics[name].config.keys()):
            raise BadPlan(f"{name} has no setting {', '.join(unknown)} of its own")
        if changed or dropped:
            alter_settings(self._brokers, TOPIC, name, changed, dropped)
        if partitions is not None:
            wanted = t.CreatePartitionsRequestCreatePartitionsTopic(
                name=name, count=partitions, assignments=None
            )
            answer = self._brokers.controller(t.CreatePartitionsRequest(topics=[wanted]))
            check(answer.results[0].error_code, f"partitions of {name}", answer.results[0].error_message)

    def elect(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
        refused = {}
        for where, (error, message) in self._elect(m.ElectionType.PREFERRED, partitions).items():
            if error is not ErrorCode.ELECTION_NOT_NEEDED:
                try:
                    check(error, str(where), message)
                except RequestRefused as refusal:
                    refused[where] = str(refusal)
        return refused

    def elect_unclean(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, m.AdminResult]:
        """Elect leaders where there are none, also from outside the ISR; return errors and messages."""
        return self._elect(m.ElectionType.UNCLEAN, partitions)

    def _elect(
        self, election_type: m.ElectionType, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, m.AdminResult]:
        request = to_wire(m.ElectLeadersRequest(election_type, tuple(partitions)), t.ElectLeadersRequest)
        answer = from_wire(self._brokers.controller(request), m.ElectLeadersResponse)
        check(answer.error, "the election")
        return answer.partitions

    def is_electing(self) -> bool:
        return False  # the controller answers when it has tried

    def move(self, plan: Plan, *, may_join: bool) -> None:
        if not may_join and self.moving():
            raise BadPlan(
                "a reassignment is in progress: try again when it has ended, or add to it with --additional"
            )
        self._move(plan)

    def move_back(self, plan: Plan) -> None:
        self._move(dict.fromkeys(plan))

    def moving(self) -> Collection[TopicPartition]:
        return self._under_way().partitions.keys()

    def limit_replication(self, brokers: Iterable[int], rate: int | None) -> None:
        for broker in brokers:
            changed = {} if rate is None else dict.fromkeys(REPLICATION_RATES, str(rate))
            alter_settings(
                self._brokers, BROKER, str(broker), changed, REPLICATION_RATES if rate is None else ()
            )

    def replication_rates(self, brokers: Iterable[int]) -> dict[int, Rates]:
        found = {}
        for broker in brokers:
            settings = described_settings(self._brokers, BROKER, [str(broker)], keys=list(REPLICATION_RATES))
            given = {
                each.name: each.value
                for each in settings[str(broker)]
                if each.config_source != _DEFAULT and each.value is not None
            }
            found[broker] = rates_in(given, REPLICATION_RATES)
        return found

    def _move(self, wanted: Mapping[TopicPartition, tuple[int, ...] | None]) -> None:
        request = m.AlterPartitionReassignmentsRequest(wanted)
        answer = self._brokers.controller(to_wire(request, t.AlterPartitionReassignmentsRequest))
        check(answer.error_code, "the reassignment", answer.error_message)
        for each, result in from_wire(answer, m.AlterPartitionReassignmentsResponse).partitions.items():
            check(result.error, str(each), result.message)

    def _under_way(self, *, may_lack_controller: bool = False) -> m.ListPartitionReassignmentsResponse:
        """Return all reassignments, and all deletions if the controller is a broker of ours."""
        answer: t.ListPartitionReassignmentsResponse = self._brokers.controller(
            t.ListPartitionReassignmentsRequest(topics=None),
            timeout_s=SHORT_PATIENCE_S if may_lack_controller else TIMEOUT_S,
            patience_s=0.0 if may_lack_controller else TIMEOUT_S,
        )
        check(answer.error_code, "the reassignments", answer.error_message)
        return from_wire(answer, m.ListPartitionReassignmentsResponse)

    def _settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the settings that each topic has of its own."""
        found = described_settings(self._brokers, TOPIC, topics)
        self._min_isr |= min_isr_in(found)
        return {
            name: {
                each.name: each.value
                for each in settings
                if each.config_source == _OF_THE_TOPIC and each.value is not None
            }
            for name, settings in found.items()
        }


def described_settings(
    brokers: Brokers,
    kind: int,
    names: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, list[t.DescribeConfigsResponseDescribeConfigsResourceResult]]:
    """Return the settings of topics or brokers, all or those in `keys`; of those that are gone, none.

    Any broker may be asked for those of topics, and a second one in the last third of the time.
    """
    if not names:
        return {}
    resources = [
        t.DescribeConfigsRequestDescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None if keys is None else list(keys)
        )
        for name in names
    ]
    request = t.DescribeConfigsRequest(resources=resources)
    answer = (
        brokers.broker(int(names[0]), request, timeout_s=timeout_s)
        if kind == BROKER and names[0]
        else brokers.any(request, timeout_s=timeout_s * 2 / 3, total_s=timeout_s)
    )
    found = {}
    for each in answer.results:
        if each.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(each.error_code, _settings_of(kind, each.resource_name), each.error_message)
            found[each.resource_name] = each.configs
    return found


def min_isr_in(
    settings: Mapping[str, Sequence[t.DescribeConfigsResponseDescribeConfigsResourceResult]],
) -> dict[str, int]:
    """Return `min.insync.replicas` of the topics whose settings these are."""
    return {
        topic: int(each.value or 1)
        for topic, found in settings.items()
        for each in found
        if each.name == MIN_ISR
    }


def alter_settings(
    brokers: Brokers, kind: int, name: str, changed: Mapping[str, str], dropped: Collection[str]
) -> None:
    """Change settings of a topic or broker, or drop them: the defaults count again."""
    operations: list[tuple[str, int, str | None]] = [(key, SET, value) for key, value in changed.items()]
    operations += [(key, DELETE, None) for key in sorted(dropped)]
    resource = t.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            t.IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=what, value=value)
            for key, what, value in operations
        ],
    )
    request = t.IncrementalAlterConfigsRequest(resources=[resource])
    answer = brokers.broker(int(name), request) if kind == BROKER and name else brokers.controller(request)
    (done,) = answer.responses
    check(done.error_code, _settings_of(kind, name), done.error_message)


def _settings_of(kind: int, name: str) -> str:
    of_broker = f"broker {name}" if name else "all brokers"
    return f"settings of {of_broker if kind == BROKER else name}"


def _registration(broker: t.MetadataResponseBroker) -> BrokerRegistration:
    return BrokerRegistration(broker.host, broker.port, rack=broker.rack or "")


def _topic(
    name: str,
    topic: t.MetadataResponseTopic,
    settings: Mapping[str, str],
    moves: Mapping[TopicPartition, m.OngoingReassignment],
) -> Topic:
    moving = {each.partition: move for each, move in moves.items() if each.topic == name}
    assignment = TopicAssignment(
        id_from_wire(topic.topic_id),
        {each.partition_index: tuple(each.replica_nodes) for each in topic.partitions},
        {number: each.adding_replicas for number, each in moving.items() if each.adding_replicas},
        {number: each.removing_replicas for number, each in moving.items() if each.removing_replicas},
    )
    return Topic(assignment, settings, version=-1, config_version=-1)
