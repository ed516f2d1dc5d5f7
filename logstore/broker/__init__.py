"""Brokers that speak Kafka's protocol, to serve or to embed, and a client.

with Broker(BrokerConfig(node_id=1, log_dirs=("data",))) as broker:
    broker.create_topic("orders", 3)
    broker.append("orders", b"placed", key=b"42")

with BlockingClient([Address("127.0.0.1", 9092)]) as client:
    records = client.read("orders", partition=0)

Names are imported on first use: every pytest run in an environment with this package imports the plugin in
this package, and must not load the rest (decision 032).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logstore.lazily import names_from

if TYPE_CHECKING:
    from logstore.broker.blocking import BlockingClient
    from logstore.broker.client import Client
    from logstore.broker.embedded import AsyncBroker, BrokerConfig
    from logstore.broker.embedded_cluster import BrokerCluster
    from logstore.broker.errors import BrokerFailed, BrokerStopped, RequestRefused, RequestUnanswered
    from logstore.broker.limits import Address
    from logstore.broker.metadata.local import SharedStore
    from logstore.broker.metadata.opening import open_store
    from logstore.broker.producing import Appended
    from logstore.broker.security.client import ClientSecurity, client_security
    from logstore.broker.shared_queue import SharedQueue
    from logstore.broker.threaded import Broker
    from logstore.replication.receipts import Receipt

__all__ = [
    "Address",
    "Appended",
    "AsyncBroker",
    "BlockingClient",
    "Broker",
    "BrokerCluster",
    "BrokerConfig",
    "BrokerFailed",
    "BrokerStopped",
    "Client",
    "ClientSecurity",
    "Receipt",
    "RequestRefused",
    "RequestUnanswered",
    "SharedQueue",
    "SharedStore",
    "client_security",
    "open_store",
]

__getattr__, __dir__ = names_from(
    __name__,
    {
        "blocking": ("BlockingClient",),
        "client": ("Client",),
        "embedded": ("AsyncBroker", "BrokerConfig"),
        "embedded_cluster": ("BrokerCluster",),
        "errors": ("BrokerFailed", "BrokerStopped", "RequestRefused", "RequestUnanswered"),
        "limits": ("Address",),
        "security.client": ("ClientSecurity", "client_security"),
        "shared_queue": ("SharedQueue",),
        "threaded": ("Broker",),
        "metadata.local": ("SharedStore",),
        "metadata.opening": ("open_store",),
        "producing": ("Appended",),
        "receipts": ("Receipt",),
    },
)
