"""`python -m broker`: one node in a process of its own.

    python -m broker --node-id 1 --listen 127.0.0.1:9092 --log-dirs data/1 \\
        --metadata zookeeper://127.0.0.1:2181/cluster --set zookeeper.session.timeout.ms=6000

One line of JSON on stdout says that the node is registered and where it listens; what happens after is
told on stderr, a JSON object a line. SIGTERM and SIGINT stop it in order (code 0). It ends with code 1 if
the node cannot go on, 2 if it cannot start. What a crash leaves is the matter of its logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial

from broker.broker import Broker
from broker.clock import SteadyClock
from broker.json_lines import log_as_json
from broker.limits import Address, parse_address
from broker.loop import fastest_loop
from broker.runtime import Runtime, StoreClient, StoreEvent
from broker.settings import Settings, read_settings
from broker.state_change_file import StateChangeFile
from checkpoint.disk import Disk, OsDisk
from checkpoint.errors import EngineError
from replication.state_change import Sink, unheard

if not __debug__:
    sys.exit("error: asserts guard the logs; run without python -O")

_log = logging.getLogger("broker")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form name=value")
    return name, value


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m broker", description="Run one node.")
    parser.add_argument("--node-id", type=int, required=True)
    parser.add_argument("--listen", type=parse_address, required=True, help="host:port; port 0: any free one")
    parser.add_argument("--log-dirs", required=True, help="directories, separated by commas")
    parser.add_argument("--metadata", required=True, help="zookeeper://host:port,host:port/chroot")
    parser.add_argument("--state-change-log", help="a file for the decisions about partitions")
    parser.add_argument("--set", type=_setting, action="append", default=[], help="name=value, as Kafka's")
    return parser.parse_args(arguments)


def store_client(url: str) -> Callable[[Callable[[StoreEvent], None]], StoreClient]:
    """The maker of a client for the store that `url` names."""
    from replication.metastore.zookeeper import ZooKeeperStore

    return partial(ZooKeeperStore, url)


async def serve(
    settings: Settings,
    listen: Address,
    log_dirs: Sequence[str],
    store_of: Callable[[Callable[[StoreEvent], None]], StoreClient],
    *,
    disk: Disk,
    state_changes: Sink = unheard,
) -> int:
    """Run a node until it is told to stop (0) or cannot go on (1).

    Raises `EngineError` and `OSError` if it cannot start.
    """
    broker = await Broker.open(
        settings,
        listen,
        log_dirs,
        store_of,
        disk=disk,
        clock=SteadyClock(),
        random=random.Random(),
        state_changes=state_changes,
    )
    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    runtime = broker.runtime
    broker.start()
    waiting = asyncio.create_task(told_to_stop.wait())
    announcing = asyncio.create_task(_announce(runtime, broker.address))
    try:
        await asyncio.wait((waiting, runtime.ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        announcing.cancel()
    if not runtime.ended.done():
        await broker.stop()
    if runtime.ended.done():
        _log.critical("cannot go on: %s", runtime.ended.exception() or runtime.ended.result())
        await broker.abandon()
        return 1
    return 0


async def _announce(runtime: Runtime, address: Address) -> None:
    await runtime.registered.wait()
    node = runtime.node
    ready = {
        "node_id": node.node_id,
        "host": address.host,
        "port": address.port,
        "broker_epoch": node.broker_epoch,
    }
    print(json.dumps(ready), flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run; the exit code."""
    options = _options(arguments)
    log_as_json()
    disk = OsDisk()
    listen: Address = options.listen
    try:
        settings = read_settings(
            dict(options.set), node_id=options.node_id, host=listen.host, port=listen.port
        )
        changes = options.state_change_log
        sink = StateChangeFile(changes, disk=disk) if changes is not None else unheard
        store_of = store_client(options.metadata)
        with asyncio.Runner(loop_factory=fastest_loop()) as runner:
            return runner.run(
                serve(
                    settings, listen, options.log_dirs.split(","), store_of, disk=disk, state_changes=sink
                )
            )
    except (EngineError, OSError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
