"""An event-sourced service with FastAPI: accounts, whose balances are the sum of all movements.

DIRECTORY=data fastapi run examples/event_sourced_service.py

append     a movement becomes an event in the log, and is answered when it survives power loss
project    the balances are folded from the events, one by one
replay     a start reads the newest snapshot, and the events behind it
snapshot   from time to time the projection is written to a log of its own
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from logstore import AsyncLog, Record

SNAPSHOT_EVERY = 100


class Movement(BaseModel):
    """An event. Its bounds are those of every record, and of every sum in a snapshot."""

    account: str = Field(min_length=1, max_length=100)
    amount: int = Field(ge=-(10**12), le=10**12)


class Accounts(BaseModel):
    """The projection: balances as of `next_offset`."""

    next_offset: int = 0
    balances: dict[str, int] = {}

    def apply(self, event: Movement, offset: int) -> None:
        self.balances[event.account] = self.balances.get(event.account, 0) + event.amount
        self.next_offset = offset + 1


def service(directory: str) -> FastAPI:
    accounts = Accounts()
    deciding = asyncio.Lock()
    logs: dict[str, AsyncLog] = {}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        nonlocal accounts
        async with (
            AsyncLog.open(f"{directory}/movements-0", serializer="json") as events,
            AsyncLog.open(f"{directory}/balances-0", serializer="json") as snapshots,
        ):
            newest: Record | None = await snapshots.last()
            if newest is not None:
                accounts = Accounts.model_validate_json(newest.value or b"")
            async for record in events.read(accounts.next_offset):
                accounts.apply(Movement.model_validate_json(record.value or b""), record.offset)
            logs.update(events=events, snapshots=snapshots)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/movements")
    async def move(movement: Movement) -> dict[str, int]:
        async with deciding:  # nobody else decides between this look and this event
            balance = accounts.balances.get(movement.account, 0) + movement.amount
            if balance < 0:
                raise HTTPException(409, "the account has too little")
            info = await logs["events"].append(movement, key=movement.account.encode())
            accounts.apply(movement, info.last_offset)
            if accounts.next_offset % SNAPSHOT_EVERY == 0:
                await logs["snapshots"].append(accounts)
        await logs["events"].flush()  # requests that wait here share one sync
        return {"offset": info.last_offset, "balance": balance}

    @app.get("/accounts/{account}")
    async def balance_of(account: str) -> dict[str, int]:
        return {"balance": accounts.balances.get(account, 0)}

    return app


if "DIRECTORY" in os.environ:
    app = service(os.environ["DIRECTORY"])
