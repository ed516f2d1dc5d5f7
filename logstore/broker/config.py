"""Settings of a broker as its clients see it, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """`auto_create_topics_enable`: a client that asks for a topic's metadata has it made."""

    auto_create_topics_enable: bool = True
    """Create a topic when a client requests its metadata."""
