"""A group's decisions: responses to waiting requests, and generations to write to the log."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

from logstore.broker.groups.members import Member
from logstore.broker.groups.records import GroupMetadata
from logstore.broker.groups.requests import (
    NO_MEMBER_ID,
    GroupResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)
from logstore.disk.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class Answer:
    """Send `response` to the request that came with `token`."""

    token: Hashable
    response: GroupResponse


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this generation to the log, then report the outcome: `Group.persisted(ticket, …)`."""

    ticket: int
    metadata: GroupMetadata


Decision: TypeAlias = Answer | Persist


class Outbox:
    """Decisions in order, until the caller takes them."""

    def __init__(self) -> None:
        self._decisions: list[Decision] = []

    def answer(self, token: Hashable, response: GroupResponse) -> None:
        self._decisions.append(Answer(token, response))

    def persist(self, ticket: int, metadata: GroupMetadata) -> None:
        self._decisions.append(Persist(ticket, metadata))

    def take(self) -> list[Decision]:
        """Return the decisions made since the last call."""
        taken, self._decisions = self._decisions, []
        return taken

    def fail_join(self, member: Member, error: ErrorCode) -> None:
        """Answer a waiting join with an error; UNKNOWN_MEMBER_ID (25) also revokes the member id."""
        member_id = NO_MEMBER_ID if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        self.answer(member.join_token, JoinGroupResponse(error_code=error, member_id=member_id))
        member.join_token = None

    def fail_sync(self, member: Member, error: ErrorCode) -> None:
        self.answer(member.sync_token, SyncGroupResponse(error_code=error))
        member.sync_token = None

    def fail(self, member: Member, error: ErrorCode) -> None:
        """Answer all waiting requests of the member with an error."""
        if member.join_token is not None:
            self.fail_join(member, error)
        if member.sync_token is not None:
            self.fail_sync(member, error)
