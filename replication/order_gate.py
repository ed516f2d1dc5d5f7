"""Holds orders of an unknown controller until the metadata store confirms its epoch.

    LeaderAndIsr, StopReplica, UpdateMetadata
        │ epoch ≤ confirmed ─────────────────────────▶ carried out
        └ epoch > confirmed ─▶ held ─▶ Get /controller_epoch ─┬ epoch ≤ the store's ─▶ carried out
                                                              └ otherwise, or no reply ─▶ refused

Any connection can claim any controller epoch. A claim that is believed ends the orders of the real
controller here, and a StopReplica deletes logs. Only the store knows which controllers were elected, and each
writes its epoch there before its first order. A node that gets no reply from the store refuses; a controller
sends its order again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from logstore.disk.marks import mark
from logstore.replication.effects import Request, StoreCall
from logstore.replication.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from logstore.replication.metastore.errors import CorruptMetadata
from logstore.replication.metastore.layout import CONTROLLER_EPOCH_PATH, parse_controller_epoch
from logstore.replication.metastore.operations import Get, Outcome

Order: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest


class Verdict(NamedTuple):
    """Held orders that were looked up: those to carry out, and those to refuse for `reason`."""

    confirmed: list[Request]
    refused: list[Request]
    reason: str


class OrderGate:
    """The highest confirmed controller epoch, and the orders that claim a higher one."""

    def __init__(self, next_id: Callable[[], int], patience_ms: int) -> None:
        """`patience_ms` is the time after which a reply of the store counts as lost."""
        self.confirmed_epoch = 0
        self.deadline_ms: int | None = None
        """When to call `expire`; None while nothing is looked up."""
        self._next_id, self._patience_ms = next_id, patience_ms
        self._held: list[Request] = []
        self._call_id = -1
        self._covered = 0
        """How many of the held orders are older than the call under way: its reply decides about them."""

    def admits(self, controller_epoch: int) -> bool:
        """Whether an order with this epoch may be carried out now."""
        return controller_epoch <= self.confirmed_epoch

    def hold(self, request: Request) -> None:
        """Hold an order until its epoch is looked up."""
        mark("roles: the epoch of an unknown controller is looked up")
        self._held.append(request)

    def look_up(self, session_id: int, now_ms: int) -> list[StoreCall]:
        """Ask the store for the controller epoch, if orders wait for it and no reply is awaited."""
        if self._covered or not self._held:
            return []
        self._call_id, self._covered = self._next_id(), len(self._held)
        self.deadline_ms = now_ms + self._patience_ms
        return [StoreCall(session_id, self._call_id, Get(CONTROLLER_EPOCH_PATH))]

    def owns(self, call_id: int) -> bool:
        """Whether this is the call under way."""
        return bool(self._covered) and call_id == self._call_id

    def decide(self, outcome: Outcome) -> Verdict:
        """Judge held orders by the store's reply; it refuses none that came after the request."""
        reason = f"the store answered {outcome.error}"
        if outcome.error is None:
            try:
                epoch = parse_controller_epoch(outcome.data)
            except CorruptMetadata as error:
                reason = str(error)
            else:
                # A store's server may lag behind, so a lower epoch than known says nothing new.
                self.confirmed_epoch = max(self.confirmed_epoch, epoch)
                reason = f"the newest controller in the store has epoch {epoch}"
        confirmed = [each for each in self._held if self.admits(order_in(each).controller_epoch)]
        refused = [each for each in self._held[: self._covered] if each not in confirmed]
        self._keep([each for each in self._held[self._covered :] if each not in confirmed])
        return Verdict(confirmed, refused, reason)

    def expire(self, now_ms: int) -> Verdict:
        """Give up on a reply that is overdue: its orders are refused."""
        if self.deadline_ms is None or now_ms < self.deadline_ms:
            return Verdict([], [], "")
        overdue = self._held[: self._covered]
        self._keep(self._held[self._covered :])
        return Verdict([], overdue, f"the store did not answer for {self._patience_ms} ms")

    def release(self) -> list[Request]:
        """Return all held orders, because the session ended: they wait for the next registration."""
        held = self._held
        self._keep([])
        return held

    def _keep(self, orders: list[Request]) -> None:
        self._held, self._covered, self.deadline_ms = orders, 0, None


def order_in(request: Request) -> Order:
    """Return the order that a request brings."""
    assert isinstance(request.body, Order), f"{type(request.body).__name__} is no order"
    return request.body
