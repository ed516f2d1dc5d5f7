"""A counterexample as text: each step, and the parts that it changed."""

from __future__ import annotations

from collections.abc import Sequence

from logstore.replication.metastore.layout import LOST_BROKER_EPOCH
from logstore.segment.epochs import UNDEFINED
from tests.model.explorer import Move, Parts
from tests.model.parts import NAMES, REPLICA, Committed, FetchAnswer, Replica, Store


def name_of(broker: int) -> str:
    return NAMES[broker] if broker >= 0 else "nobody"


def names_of(brokers: Sequence[int]) -> str:
    return "{" + ",".join(NAMES[broker] for broker in brokers) + "}"


def told(answer: FetchAnswer) -> str:
    if answer.leader_end != UNDEFINED:
        return f"out of range, the leader ends at {answer.leader_end}"
    if answer.diverging is not None:
        return f"diverging({answer.diverging.epoch},{answer.diverging.end_offset})"
    records = " ".join(str(record.epoch) for record in answer.records) or "nothing"
    return f"{records}, hw {answer.high_watermark}"


def decision(before: Store, after: Store) -> str:
    if after.version == before.version:
        return ""
    state = after.state
    return f": epoch {state.leader_epoch}, leader {name_of(state.leader)}, ISR {names_of(state.isr)}"


def transcript(trace: Sequence[Move]) -> str:
    """A counterexample to read: each step, and below it the parts that it changed."""
    lines = []
    before: Parts = ()
    for number, move in enumerate(trace):
        lines.append(f"{number:3}  {move.label}")
        changed = [slot for slot, part in enumerate(move.state) if not before or part != before[slot]]
        for slot in changed:
            part = move.state[slot]
            if isinstance(part, Store):
                lines.append(f"       {_describe_store(part)}")
            elif isinstance(part, Replica):
                lines.append(f"       {_describe(slot - REPLICA, part)}")
            elif isinstance(part, Committed) and part.records:
                epochs = " ".join(str(record.epoch) for record in part.records)
                lines.append(f"       committed: {epochs}")
        before = move.state
    return "\n".join(lines)


def _describe_store(store: Store) -> str:
    state = store.state
    members = ",".join(
        NAMES[member] + ("!" if epoch == LOST_BROKER_EPOCH else f"{epoch}")
        for member, epoch in zip(state.isr, state.isr_broker_epochs, strict=True)
    )
    text = (
        f"store v{store.version}: epoch {state.leader_epoch}, leader {name_of(state.leader)}, ISR {members}"
    )
    if state.eligible:
        eligible = (f"{NAMES[replica]}{broker_epoch}" for replica, broker_epoch in state.eligible)
        text += ", eligible " + ",".join(eligible)
    return text


def _describe(me: int, replica: Replica) -> str:
    epochs = " ".join(str(record.epoch) for record in replica.log) or "·"
    text = f"{NAMES[me]} = {epochs} | hw {replica.high_watermark}"
    if not replica.is_up:
        return f"{text}  down"
    if replica.leader == me:
        role = "suspended" if replica.is_suspended else "leads"
        text += f"  {role} e{replica.epoch}, ISR {names_of(replica.isr)}"
        if replica.pending is not None:
            text += f", proposed {names_of(replica.pending.isr)}"
    elif replica.epoch >= 0:
        text += f"  follows {name_of(replica.leader)} e{replica.epoch}"
    else:
        text += "  has no role yet"
    return text
