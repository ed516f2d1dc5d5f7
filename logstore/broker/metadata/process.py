"""The embedded metadata store in its own process, for several brokers: `logstore metadata-store`.

It prints its address as one line of JSON. SIGTERM, SIGINT and SIGHUP stop it (exit code 0). The exit code is
1 if its disk fails and 2 if it cannot start. A crash loses nothing that was answered.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Mapping

from logstore.broker.json_lines import log_as_json
from logstore.broker.limits import Address
from logstore.broker.loop import heed_stop_signals, survive_broken_pipes
from logstore.broker.metadata.entrance import OPEN, Entrance, read_entrance
from logstore.broker.metadata.server import MetadataServer, session_secret
from logstore.disk.descriptors import descriptor_limit
from logstore.disk.errors import EngineError
from logstore.disk.files import Disk, OsDisk, SteadyClock
from logstore.disk.host_files import make_private_dir
from logstore.loggers import logger_of
from logstore.replication.metastore.embedded import EmbeddedStore
from logstore.replication.metastore.errors import MetadataStoreFailed

_log = logger_of("logstore.broker.metadata")


async def serve(directory: str, listen: Address, *, disk: Disk, entrance: Entrance = OPEN) -> int:
    """Serve until a signal arrives (returns 0) or the disk fails (returns 1).

    Raises `EngineError` and `OSError` if it cannot start.
    """
    clock = SteadyClock()
    with EmbeddedStore(directory, disk=disk, sessions_from_ms=clock()) as store:
        secret = session_secret(directory, disk=disk, random=random.Random())
        server = MetadataServer(store, clock=clock, secret=secret, entrance=entrance)
        address = await server.listen(listen)
        told_to_stop = asyncio.Event()
        heed_stop_signals(lambda _: told_to_stop.set())
        print(json.dumps({"host": address.host, "port": address.port}), flush=True)
        waiting = asyncio.ensure_future(told_to_stop.wait())
        await asyncio.wait((waiting, server.failed), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        server.close()
        if server.failed.done():
            _log.critical("the metadata store failed: %s", server.failed.exception())
            return 1
    return 0


def run(
    directory: str,
    listen: Address,
    *,
    log_file: str | None = None,
    settings: Mapping[str, str] | None = None,
    insecure: bool = False,
) -> int:
    """Serve, and return the exit code; an error at the start is one line on stderr.

    `settings` are those of `read_entrance`. `insecure` lets everyone on the network have full access.
    """
    survive_broken_pipes()
    descriptor_limit(raise_it=True)
    try:
        log_as_json(log_file)
        entrance = read_entrance(settings or {})
        if not insecure:
            entrance.refuse_open(listen)
        make_private_dir(directory)
        return asyncio.run(serve(directory, listen, disk=OsDisk(), entrance=entrance))
    except MetadataStoreFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (EngineError, OSError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
