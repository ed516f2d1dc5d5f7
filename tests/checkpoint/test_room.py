"""Errors of the room carry Kafka's codes."""

from __future__ import annotations

from logstore.disk.errors import CorruptCheckpoint, DirectoryLocked, EngineError, ErrorCode, InvalidTopic


def test_errors_carry_kafkas_codes() -> None:
    assert CorruptCheckpoint.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert DirectoryLocked.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert InvalidTopic.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert issubclass(InvalidTopic, EngineError)
