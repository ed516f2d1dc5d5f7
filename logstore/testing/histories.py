"""The batches that a partition's checker records: all that were sent, appended and committed.

Two facts are central. `History`: base offset and leader epoch identify a batch, and fix its bytes and the
batch before it, on every replica and permanently. So two logs that agree on one batch agree on everything
below it. `Committed`: every batch that any leader's high watermark has ever covered. It only grows, except
when an election outside the ISR cuts it to what the new leader holds; `floor` is the lowest such cut.
"""

from __future__ import annotations

from logstore.testing.stored import ReplicaView, Stored, Violation, name_of

NO_PRODUCER = -1


class History:
    """The batches that producers sent and that replicas appended, in one partition."""

    def __init__(self, partition: str) -> None:
        self.sent: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.appended: set[bytes] = set()
        self._partition = partition
        self._known: dict[tuple[int, int], tuple[bytes, tuple[int, int] | None]] = {}

    def append(self, batch: Stored, previous: Stored | None, view: ReplicaView) -> None:
        """A replica holds `batch` behind `previous`; raises `Violation` if that contradicts the past."""
        name = batch.base, batch.epoch
        known = self._known.get(name)
        if known is None:
            identity = batch.identity
            if identity in self.refused:
                self._fail("C5", f"a refused send was appended at {batch.base}; {view}")
            if identity not in self.sent:
                self._fail("C5", f"nobody sent the batch at {batch.base}; {view}")
            self.appended.add(identity)
            self._known[name] = batch.data, name_of(previous)
        elif known[0] != batch.data:
            self._fail("C3", f"offset {batch.base} of epoch {batch.epoch} has two contents; {view}")
        elif known[1] is None:  # its first holder had deleted the batch before it
            self._known[name] = batch.data, name_of(previous)
        elif previous is not None and known[1] != name_of(previous):
            self._fail(
                "C3",
                f"the batch before offset {batch.base} of epoch {batch.epoch} is of epoch {previous.epoch} "
                f"here and {known[1]} elsewhere; {view}",
            )

    def _fail(self, invariant: str, message: str) -> None:
        raise Violation(invariant, f"{self._partition}: {message}")


class Committed:
    """The committed batches of one partition, in offset order, and the leader epoch that committed each."""

    def __init__(self, partition: str) -> None:
        self.batches: list[Stored] = []
        self.floor: int | None = None
        """The lowest end after an unclean election; None: there was none."""
        self._partition = partition
        self._epochs: list[int] = []
        self._offsets: dict[bytes, int] = {}
        self._next_sequences: dict[tuple[int, int], tuple[int, int]] = {}
        """By producer id and epoch: the next sequence, and the last offset so far."""

    @property
    def end(self) -> int:
        """One past the last offset that any leader reported as committed."""
        return self.batches[-1].end if self.batches else 0

    def newest_before(self, epoch: int) -> Stored | None:
        """Return the last batch that a leader of an epoch before this one committed."""
        for slot in range(len(self.batches) - 1, -1, -1):
            if self._epochs[slot] < epoch:
                return self.batches[slot]
        return None

    def append(self, batch: Stored, view: ReplicaView, log_start: int) -> None:
        """The leader `view` committed `batch`; raises `Violation` for a duplicate or a gap in a sequence."""
        identity = batch.identity
        first = self._offsets.get(identity)
        # A replica that was restarted does not know batches that retention deleted: it accepts them again.
        if first is not None and first >= log_start:
            self._fail("C6", f"sent once, committed at {first} and at {batch.base}; {view}")
        self._offsets[identity] = batch.base
        self._judge_sequence(batch, log_start)
        self.batches.append(batch)
        self._epochs.append(view.leader_epoch)

    def _judge_sequence(self, batch: Stored, log_start: int) -> None:
        """An idempotent producer sends one batch at a time: none may be missing, none may be there twice."""
        producer_id, epoch, sequence = batch.numbers
        if producer_id == NO_PRODUCER:
            return
        expected, last_offset = self._next_sequences.get((producer_id, epoch), (sequence, batch.base))
        if sequence != expected and last_offset >= log_start:
            self._fail(
                "C10",
                f"producer {producer_id} in epoch {epoch}: sequence {sequence} at offset {batch.base}, "
                f"expected {expected}",
            )
        self._next_sequences[producer_id, epoch] = sequence + batch.end - batch.base, batch.end - 1

    def cut(self, view: ReplicaView) -> int:
        """Keep what this leader, elected outside the ISR, holds; return the new end."""
        keep = len(self.batches)
        # The leader serves the batch around its log start as a whole: deletion takes only batches that end
        # before it. It lacks a later batch if its log began anew inside it, or if its history differs.
        first = view.holding(view.log_start)
        begins = view.log_start if first is None else first.base
        while keep:
            last = self.batches[keep - 1]
            if last.end <= begins or name_of(view.holding(last.base)) == name_of(last):
                break
            keep -= 1
        self._next_sequences.clear()  # the next sequence of a producer is no longer certain
        del self.batches[keep:], self._epochs[keep:]
        # Below the log start of a former leader there may be batches of another history.
        own = [batch for batch in view.batches if batch.base >= begins and batch.end <= self.end]
        epochs = {name_of(batch): epoch for batch, epoch in zip(self.batches, self._epochs, strict=True)}
        self.batches = [batch for batch in self.batches if batch.end <= begins] + own
        self._epochs = [epochs.get(name_of(batch), batch.epoch) for batch in self.batches]
        self._offsets = {batch.identity: batch.base for batch in self.batches}
        self.floor = self.end if self.floor is None else min(self.floor, self.end)
        return self.end

    def _fail(self, invariant: str, message: str) -> None:
        raise Violation(invariant, f"{self._partition}: {message}")
