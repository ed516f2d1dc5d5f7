"""Settings of a broker's service to clients, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """`auto_create_topics_enable`: create a topic when a client requests its metadata."""

    auto_create_topics_enable: bool = True
    """Create a topic when a client requests its metadata."""
