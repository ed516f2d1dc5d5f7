"""The versions of each API: ApiVersions, the generated types and the codec follow this table.

`advertised` is the range in ApiVersions, `served` the range that is answered. They differ where a client
looks for a version that it never sends: librdkafka before 2.11 needs Produce 0 for compression, and
FindCoordinator 0 for lz4 and groups. Its probes for Fetch 4 and ListOffsets 1 are in the ranges anyway. A
request in a version that is advertised and not served closes the connection.

Not supported: transactions (24-26, 28), and APIs that no classic client needs (69 and up). Tools need 27, 65
and 66 to end a hanging transaction.
ConsumerGroupHeartbeat (68) is advertised to be refused: librdkafka looks for another coordinator for ever
where it is missing. Messages between brokers are not advertised, but for ControlledShutdown: an operator's
tool sends it, too (`logstore brokers drain`).
"""

from __future__ import annotations

from typing import NamedTuple


class Versions(NamedTuple):
    """A row of the table. `advertised` is empty for messages between brokers."""

    key: int
    name: str
    advertised: str
    served: str


TABLE = (
    Versions(0, "Produce", "0-11", "3-11"),
    Versions(1, "Fetch", "4-17", "4-17"),
    Versions(2, "ListOffsets", "1-8", "1-8"),
    Versions(3, "Metadata", "0-12", "0-12"),
    Versions(4, "LeaderAndIsr", "", "7"),
    Versions(5, "StopReplica", "", "4"),
    Versions(6, "UpdateMetadata", "", "8"),
    Versions(7, "ControlledShutdown", "3", "3"),
    Versions(8, "OffsetCommit", "2-9", "2-9"),
    Versions(9, "OffsetFetch", "1-9", "1-9"),
    Versions(10, "FindCoordinator", "0-4", "0-4"),
    Versions(11, "JoinGroup", "0-9", "0-9"),
    Versions(12, "Heartbeat", "0-4", "0-4"),
    Versions(13, "LeaveGroup", "0-5", "0-5"),
    Versions(14, "SyncGroup", "0-5", "0-5"),
    Versions(15, "DescribeGroups", "0-5", "0-5"),
    Versions(16, "ListGroups", "0-5", "0-5"),
    Versions(17, "SaslHandshake", "0-1", "0-1"),
    Versions(18, "ApiVersions", "0-4", "0-4"),
    Versions(19, "CreateTopics", "2-7", "2-7"),
    Versions(20, "DeleteTopics", "1-6", "1-6"),
    Versions(21, "DeleteRecords", "0-2", "0-2"),
    Versions(22, "InitProducerId", "0-4", "0-4"),
    Versions(23, "OffsetForLeaderEpoch", "2-4", "2-4"),
    Versions(27, "WriteTxnMarkers", "1", "1"),
    Versions(29, "DescribeAcls", "1-3", "1-3"),
    Versions(30, "CreateAcls", "1-3", "1-3"),
    Versions(31, "DeleteAcls", "1-3", "1-3"),
    Versions(32, "DescribeConfigs", "1-4", "1-4"),
    Versions(33, "AlterConfigs", "0-2", "0-2"),
    Versions(34, "AlterReplicaLogDirs", "1-2", "1-2"),
    Versions(35, "DescribeLogDirs", "1-4", "1-4"),
    Versions(36, "SaslAuthenticate", "0-2", "0-2"),
    Versions(37, "CreatePartitions", "0-3", "0-3"),
    Versions(38, "CreateDelegationToken", "1-3", "1-3"),
    Versions(39, "RenewDelegationToken", "1-2", "1-2"),
    Versions(40, "ExpireDelegationToken", "1-2", "1-2"),
    Versions(41, "DescribeDelegationToken", "1-3", "1-3"),
    Versions(42, "DeleteGroups", "0-2", "0-2"),
    Versions(43, "ElectLeaders", "0-2", "0-2"),
    Versions(44, "IncrementalAlterConfigs", "0-1", "0-1"),
    Versions(45, "AlterPartitionReassignments", "0", "0"),
    Versions(46, "ListPartitionReassignments", "0", "0"),
    Versions(47, "OffsetDelete", "0", "0"),
    Versions(48, "DescribeClientQuotas", "0-1", "0-1"),
    Versions(49, "AlterClientQuotas", "0-1", "0-1"),
    Versions(50, "DescribeUserScramCredentials", "0", "0"),
    Versions(51, "AlterUserScramCredentials", "0", "0"),
    Versions(56, "AlterPartition", "", "3"),
    Versions(60, "DescribeCluster", "0-1", "0-1"),
    Versions(61, "DescribeProducers", "0", "0"),
    Versions(65, "DescribeTransactions", "0", "0"),
    Versions(66, "ListTransactions", "0-2", "0-2"),
    Versions(68, "ConsumerGroupHeartbeat", "0-1", "0-1"),
)
