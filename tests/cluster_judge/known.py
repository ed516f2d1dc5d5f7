"""The documented differences that the judge meets, by a name; docs/differences.md tells the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple


class Met(NamedTuple):
    """One difference, to be recognised."""

    step: str
    what: str
    kafka: Any
    ours: Any
    before: Sequence[str] = ()
    """The steps before this one."""
    beside: Mapping[str, tuple[Any, Any]] = MappingProxyType({})
    """All that differs after this step."""

    def answers(self, step: str, kafka: Any, ours: Any) -> bool:
        """Return whether the outcome of such a step is these codes."""
        return (
            self.what == "outcome" and self.step.startswith(step) and (self.kafka, self.ours) == (kafka, ours)
        )

    def parts(self, kafka: Any, ours: Any) -> bool:
        """Return whether the step itself went these different ways; all else follows from that."""
        return self.beside.get("outcome") == (kafka, ours)

    @property
    def topic(self) -> str:
        """The topic in the name of what differs, or of the partition in the step."""
        if self.what == "outcome":
            return next((each.partition("-")[0] for each in self.step.split() if "-" in each), "")
        word = self.what.split()[1] if self.what.startswith("node ") else self.what.split()[0]
        return word.split("/")[3] if word.startswith("/brokers/topics/") else word.partition("-")[0]

    @property
    def returns_deleted_records(self) -> bool:
        """Return whether Kafka's leader of the partition serves records that were deleted."""
        kafka, ours = self.beside.get(f"{self.what.split()[0]} log start", (None, None))
        is_lower = bool(kafka and ours and kafka[1] < ours[1])
        return is_lower and any(each.startswith(f"delete records of {self.topic}-") for each in self.before)

    @property
    def is_deleted(self) -> bool:
        return f"delete {self.topic}" in (*self.before, self.step)

    @property
    def ours_alone_leads(self) -> bool:
        """Return whether ours alone has a leader for a partition of the topic."""
        return any(
            what.startswith(f"{self.topic}-") and what.endswith(" told leader") and kafka == -1 and ours != -1
            for what, (kafka, ours) in self.beside.items()
        )

    @property
    def commits_with_two(self) -> bool:
        heads = (f"create {self.topic} ", f"set {self.topic} min.insync.replicas=2", f"set {self.topic} to ")
        return any(
            each.startswith(heads) and "2" in each.rpartition("min.insync.replicas")[2]
            for each in self.before
        )

    @property
    def is_rise(self) -> bool:
        return self.what.endswith("epoch rise")

    @property
    def is_reassigned(self) -> bool:
        """Return whether the partition of a leader epoch was or is being reassigned."""
        steps = (*self.before, self.step)
        return self.what == "reassignments" or any(
            f"reassign {self.topic}-" in each or f"the reassignment of {self.topic}-" in each
            for each in steps
        )


_NOT_KNOWN_YET: Final = [78, -1]
"""A new leader's answer about the end of its log, until the high watermark reaches its epoch's start."""


def _without_ranks(shown: Any) -> Any:
    """Return what a replica has without the leader epochs of its batches."""
    if not isinstance(shown, dict) or "batches" not in shown:
        return object()
    batches = [(offset, values) for offset, _, values in shown["batches"]]
    return {**shown, "batches": batches, "epochs": []}


KNOWN: Final[dict[str, Callable[[Met], bool]]] = {
    "leader epochs of a reassignment": lambda met: (
        met.is_reassigned
        and (
            (met.kafka or 0) > (met.ours or 0)
            if met.is_rise
            else met.kafka == _NOT_KNOWN_YET or _without_ranks(met.kafka) == _without_ranks(met.ours)
        )
    ),
    "leader epochs when controller and leader die": lambda met: (
        met.is_rise
        and (
            # The broker that is paused was the only live one, and therefore the controller.
            (
                (met.step.endswith("the controller") or " and pause " in met.step)
                and (met.kafka, met.ours) == (2, 1)
            )
            or (met.step.endswith("the first") and met.ours in (0, 1) and met.kafka in (0, 1, 2, 3))
        )
    ),
    "no offset beside an error of Produce": lambda met: (
        met.what == "outcome"
        and "produce" in met.step
        and met.kafka[0] == met.ours[0] != "NONE"
        and met.ours[1] == -1
    ),
    "a reassignment of an unknown partition": lambda met: (
        met.answers(
            "reassign", ["NONE", "INVALID_REPLICA_ASSIGNMENT"], ["NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
        )
        or met.answers(
            "cancel", ["NONE", "NO_REASSIGNMENT_IN_PROGRESS"], ["NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
        )
    ),
    "a setting that is set to what it is": lambda met: (
        met.what == "config changes"
        and set(met.kafka) > set(met.ours)
        and any(each.startswith("set ") for each in (*met.before, met.step))
    ),
    "a new topic with a replica on a broker that is down": lambda met: (
        met.step.startswith("create ") and met.parts("NONE", "INVALID_REPLICA_ASSIGNMENT")
    ),
    "the order of a list whose reassignment was cancelled": lambda met: (
        met.step.startswith("cancel ")
        and "outcome" not in met.beside
        and (
            (met.what.endswith("told replicas") and sorted(met.kafka) == sorted(met.ours))
            or met.what == f"node /brokers/topics/{met.topic}"
        )
    ),
    "a replica that left while its broker was away": lambda met: (
        any(each in met.what for each in (" in log dirs of ", " in files of "))
        and met.is_reassigned
        and met.ours is None
    ),
    "deleted records after the kill of a replica": lambda met: (
        met.returns_deleted_records and not met.is_rise and " told " not in met.what
    ),
    "a deletion of records in an ISR too small to commit": lambda met: (
        met.what == "outcome"
        and met.step.startswith("delete records of ")
        and (met.kafka[0], met.ours[0]) == ("NONE", "REQUEST_TIMED_OUT")
        and met.commits_with_two
    ),
    "the ISR of which no member is back": lambda met: (
        met.step.endswith("the first")
        and None not in (met.kafka, met.ours)
        and (
            (met.what.endswith(" told isr") and set(met.kafka) < set(met.ours))
            or (
                met.what.endswith("/state")
                and set(met.kafka["isr"]) < set(met.ours["isr"])
                and {**met.kafka, "isr": []} == {**met.ours, "isr": []}
            )
        )
    ),
    "partitions added to a topic of which one has no leader": lambda met: met.answers(
        "add to ", "REQUEST_TIMED_OUT", "NONE"
    ),
    "replicas of a broker that was paused under a reassignment": lambda met: (
        met.what == "unrest"
        and met.ours is None
        and "has the ISR" in met.kafka
        and any(each.startswith(f"pause {met.step.split()[-1]} and reassign ") for each in met.before)
    ),
    "the checkpointed high watermark of a replica that left": lambda met: (
        " in replication checkpoint of " in met.what and met.is_reassigned and met.ours is None
    ),
    "a leader among those that left an ISR too small to commit": lambda met: (
        met.commits_with_two
        and (
            met.ours_alone_leads
            or (met.what.endswith("/state") and met.kafka == {**(met.ours or {}), "leader_recovery_state": 1})
        )
    ),
    "the state of a topic that waits for its deletion": lambda met: (
        met.is_deleted and " told " not in met.what
    ),
}

PARTING: Final = frozenset(
    {
        "a new topic with a replica on a broker that is down",
        "the order of a list whose reassignment was cancelled",
        "a leader among those that left an ISR too small to commit",
        "deleted records after the kill of a replica",
        "the ISR of which no member is back",
        "replicas of a broker that was paused under a reassignment",
        "the state of a topic that waits for its deletion",
    }
)
"""After these a story ends: the clusters go different ways."""


def known_difference(met: Met) -> str:
    """Return the name of the documented difference that this one is, or nothing."""
    return next((name for name, is_it in KNOWN.items() if is_it(met)), "")
