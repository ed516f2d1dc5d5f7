"""C12: the store's writes are fenced by the controller's epoch, and controllers' news never goes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from logstore.replication.metastore import layout
from logstore.testing.stored import Violation

_FENCED = (f"{layout.TOPICS_PATH}/", f"{layout.TOPIC_CONFIGS_PATH}/")


class StoreChecker:
    """Judge what nodes write to the metadata store, one operation after the other.

    The controller epoch never decreases. A write to topics or their settings must check, in the same Multi,
    that the writer still is the controller.
    """

    def __init__(self) -> None:
        self.controller_epoch = 0

    def written(self, paths: Sequence[str], *, is_fenced: bool, controller_epoch: int) -> None:
        """An operation that succeeded wrote these paths while the store had this `controller_epoch`."""
        if controller_epoch < self.controller_epoch:
            raise Violation(
                "C12", f"the controller epoch went from {self.controller_epoch} to {controller_epoch}"
            )
        self.controller_epoch = controller_epoch
        for path in paths:
            if path.startswith(_FENCED) and not is_fenced:
                raise Violation("C12", f"{path} was written without a check of the controller epoch")


class NewsChecker:
    """Checks the updates that controllers send to each process.

    A process that obeyed a controller obeys no earlier one, because it would send that one its ISR changes.
    A registration whose end a controller has announced is over: the same controller must not call it alive
    again. A later controller may begin with an older list, since it read the store by itself.
    """

    def __init__(self) -> None:
        self._news: dict[tuple[int, int], _News] = {}

    def obeys(self, process: tuple[int, int], controller_epoch: int) -> None:
        """A process (node, life) follows this controller."""
        news = self._news.get(process)
        if news is None or controller_epoch > news.controller_epoch:
            self._news[process] = _News(controller_epoch)
        elif controller_epoch < news.controller_epoch:
            raise Violation(
                "C12", f"node {process[0]} obeys controller {controller_epoch} after {news.controller_epoch}"
            )

    def heard(self, process: tuple[int, int], live: Mapping[int, int]) -> None:
        """Its controller reported the live brokers to a process: broker epochs by id."""
        news = self._news[process]
        for broker_id, epoch in live.items():
            if epoch <= news.ended.get(broker_id, -1):
                raise Violation(
                    "C12",
                    f"controller {news.controller_epoch} told node {process[0]} that broker {broker_id} is "
                    f"alive with epoch {epoch} after it had reported the end of that epoch",
                )
        news.ended.update({each: epoch for each, epoch in news.live.items() if live.get(each) != epoch})
        news.live = live


@dataclass(slots=True)
class _News:
    """The updates that one process got from its controller."""

    controller_epoch: int
    live: Mapping[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
