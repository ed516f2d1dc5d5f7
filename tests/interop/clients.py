"""The clients that must not know the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.interop.aio import Aiokafka
from tests.interop.confluent import Confluent
from tests.interop.kafka_python import KafkaPython

# `Any`, for adapters do not have what their clients do not offer; `absent.py` lists it.
CLIENTS: Final[Mapping[str, Callable[[], Any]]] = {
    "kafka-python": KafkaPython,
    "confluent-kafka": Confluent,
    "aiokafka": Aiokafka,
}
