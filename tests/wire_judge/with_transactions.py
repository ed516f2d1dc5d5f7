"""`python -m tests.wire_judge.with_transactions serve …`: a broker that takes batches of transactions.

A broker of ours refuses a producer with a transactional id, since no coordinator could end its transaction.
The judge ends them by WriteTxnMarkers. So it sees what readers get of a log that Apache Kafka has written.
What else a broker does stays as it is."""

from __future__ import annotations

from typing import Any, Final, cast

from logstore.broker.dispatch import Call, Services
from logstore.broker.handlers import HANDLERS, produce
from logstore.broker.wire import types as t
from logstore.cli.main import main

_TRANSACTIONAL: Final = produce._TRANSACTIONAL


def _taking(call: Call, body: t.ProduceRequest, services: Services) -> None:
    """Refuse a transactional batch only in a request without a transactional id."""
    is_named, body.transactional_id = body.transactional_id is not None, None
    produce._TRANSACTIONAL = 0 if is_named else _TRANSACTIONAL
    produce.handle(call, body, services)


if __name__ == "__main__":
    cast(dict[int, Any], HANDLERS)[t.ProduceRequest.KEY] = _taking
    main()
