"""`python_clients.py NAME JSON`: one of the Python clients logs in, writes and reads (see `clients.py`)."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 20


def kafka_python(spec: dict[str, Any]) -> dict[str, int]:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Token(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
        def token(self) -> str:
            return str(spec["token"])

    security: dict[str, Any] = {"bootstrap_servers": spec["bootstrap"], "security_protocol": spec["protocol"]}
    if spec["ca"]:
        security["ssl_cafile"] = spec["ca"]
    if spec["cert"]:
        security |= {"ssl_certfile": spec["cert"], "ssl_keyfile": spec["cert"]}
    security |= _sasl(spec, Token())
    producer = KafkaProducer(acks="all", max_block_ms=PATIENCE_S * 1000, **security)
    for number in range(spec["count"]):
        producer.send(spec["topic"], str(number).encode(), partition=0).get(PATIENCE_S)
        time.sleep(spec["pause_s"])
    producer.close()
    consumer = KafkaConsumer(auto_offset_reset="earliest", group_id=None, **security)
    consumer.assign([TopicPartition(spec["topic"], 0)])
    found: list[bytes] = []
    end_s = time.monotonic() + PATIENCE_S
    while len(found) < spec["count"] and time.monotonic() < end_s:
        for records in consumer.poll(500).values():
            found += [record.value for record in records]
    consumer.close()
    return {"written": spec["count"], "read": len(found)}


def aiokafka(spec: dict[str, Any]) -> dict[str, int]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.abc import AbstractTokenProvider

    class Token(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
        async def token(self) -> str:
            return str(spec["token"])

    security: dict[str, Any] = {"bootstrap_servers": spec["bootstrap"], "security_protocol": spec["protocol"]}
    if spec["ca"]:
        context = ssl.create_default_context(cafile=spec["ca"])
        if spec["cert"]:
            context.load_cert_chain(spec["cert"])
        security["ssl_context"] = context
    security |= _sasl(spec, Token())

    async def run() -> dict[str, int]:
        producer = AIOKafkaProducer(acks="all", **security)
        await producer.start()
        for number in range(spec["count"]):
            await producer.send_and_wait(spec["topic"], str(number).encode(), partition=0)
            await asyncio.sleep(spec["pause_s"])
        await producer.stop()
        consumer = AIOKafkaConsumer(auto_offset_reset="earliest", group_id=None, **security)
        await consumer.start()
        consumer.assign([TopicPartition(spec["topic"], 0)])
        found = 0
        while found < spec["count"]:
            found += sum(map(len, (await consumer.getmany(timeout_ms=500)).values()))
        await consumer.stop()
        return {"written": spec["count"], "read": found}

    async def bounded() -> dict[str, int]:
        async with asyncio.timeout(PATIENCE_S + 2 * spec["count"] * spec["pause_s"]):
            return await run()

    return asyncio.run(bounded())


def librdkafka(spec: dict[str, Any]) -> dict[str, int]:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    errors: list[Any] = []
    security: dict[str, Any] = {
        "bootstrap.servers": spec["bootstrap"],
        "security.protocol": spec["protocol"],
        "broker.address.family": "v4",
        "error_cb": errors.append,
        "log_level": 0,
    }
    if spec["ca"]:
        security["ssl.ca.location"] = spec["ca"]
    if spec["cert"]:
        security |= {"ssl.certificate.location": spec["cert"], "ssl.key.location": spec["cert"]}
    if spec["mechanism"]:
        security["sasl.mechanism"] = spec["mechanism"]
        if spec["mechanism"] == "OAUTHBEARER":
            security["oauth_cb"] = lambda _: (spec["token"], time.time() + 300)
        else:
            security |= {"sasl.username": spec["user"], "sasl.password": spec["password"]}
    producer = Producer({**security, "acks": "all", "message.timeout.ms": PATIENCE_S * 1000})
    written: list[Any] = []

    def report(error: Any, _: Any) -> None:
        written.append(error)

    for number in range(spec["count"]):
        producer.produce(spec["topic"], str(number).encode(), partition=0, on_delivery=report)
        while len(written) <= number:
            producer.poll(0.05)
            if any("uthentication" in str(each) or "SSL" in str(each) for each in errors):
                raise KafkaException(errors[-1])
        if written[-1] is not None:
            raise KafkaException(errors[0] if errors else written[-1])
        producer.poll(spec["pause_s"])
    consumer = Consumer({**security, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(spec["topic"], 0, 0)])
    found, end_s = 0, time.monotonic() + PATIENCE_S
    while found < spec["count"] and time.monotonic() < end_s:
        message = consumer.poll(1)
        found += message is not None and message.error() is None
    consumer.close()
    return {"written": spec["count"], "read": found}


def _sasl(spec: dict[str, Any], tokens: object) -> dict[str, Any]:
    """The login of kafka-python and aiokafka, whose options have the same names."""
    if not spec["mechanism"]:
        return {}
    if spec["mechanism"] == "OAUTHBEARER":
        return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": tokens}
    login = {"sasl_plain_username": spec["user"], "sasl_plain_password": spec["password"]}
    return {"sasl_mechanism": spec["mechanism"], **login}


CLIENTS: dict[str, Callable[[dict[str, Any]], dict[str, int]]] = {
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "librdkafka": librdkafka,
}

if __name__ == "__main__":
    try:
        said: dict[str, object] = {**CLIENTS[sys.argv[1]](json.loads(sys.argv[2]))}
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)
