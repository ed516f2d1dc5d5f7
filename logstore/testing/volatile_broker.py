"""A real broker on a disk that loses power, rots, fills up and slows down: for tests over sockets.

    with VolatileBroker(seed=7) as kafka:
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
        …
        kafka.power_cut()            of what was not synced, any legal part is gone; then it starts again
        kafka.fail_next("Produce", ErrorCode.NOT_ENOUGH_REPLICAS)
        kafka.delay_next("Fetch", 0.2)

The broker is the one of `logstore serve`, with its own thread and sockets; clients see what they would see of
any. Its disk is in memory. The seed decides what a power cut leaves; what the threads of a real broker have
written by then is not repeatable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from random import Random
from types import TracebackType
from typing import Final, NamedTuple, Self

from logstore.arguments import as_int, as_seconds
from logstore.broker.broker import Assembly
from logstore.broker.dispatch import Call, Handler, Services
from logstore.broker.embedded import BrokerConfig
from logstore.broker.threaded import Broker
from logstore.broker.wire.apis import APIS
from logstore.broker.wire.declarations import Struct
from logstore.disk.errors import ErrorCode
from logstore.disk.memory import MemoryDisk
from logstore.testing.disks.faulty import Fault, FaultyDisk

LOG_DIR: Final = "data"
SETTINGS: Final[Mapping[str, str]] = {
    "durability": "synced",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}
"""With one replica, only this level keeps what was acknowledged through a power cut."""


class _Planned(NamedTuple):
    error: ErrorCode | None
    delay_s: float
    topic: str | None


class _SlowDisk(FaultyDisk):
    """Waits before each sync of a file in the log dir, in the thread that asked for it."""

    def __init__(self, inner: MemoryDisk) -> None:
        super().__init__(inner)
        self.sync_delay_s = 0.0
        self._never = threading.Event()

    def due(self, operation: str, path: str) -> Fault | None:
        if operation == "sync" and self.sync_delay_s and path.startswith(f"{LOG_DIR}/"):
            self._never.wait(self.sync_delay_s)
        return super().due(operation, path)


class VolatileBroker:
    """One broker on a disk in memory, at one address for its whole life.

    `settings` have Kafka's names; by default `durability` is `synced`. `broker` is the running
    `Broker`: topics, appends and reads without a client of Kafka's. Use it in a `with` block.
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, seed: int = 0) -> None:
        """Prepare a broker; `seed` decides what power cuts leave and which bits rot."""
        self.random = Random(seed)
        self._settings = {**SETTINGS, **(settings or {})}
        self._memory = MemoryDisk()
        self._boots = 0
        self._is_over = True
        self._listen = "127.0.0.1:0"
        self._planned: dict[int, list[_Planned]] = {}
        self.disk = _SlowDisk(self._memory)
        """The disk under the broker. `inject` makes calls fail."""
        self.broker: Broker

    def __enter__(self) -> Self:
        self._is_over = False
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self.broker.__exit__(kind, error, trace)

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` of Kafka's clients: host:port, the same after each restart."""
        return self._listen

    def _start(self) -> None:
        config = BrokerConfig(
            listen=self._listen,
            log_dirs=(LOG_DIR,),
            disk=self.disk,
            boot_id=f"boot {self._boots}",
            settings=self._settings,
        )
        self.broker = Broker(config)
        self.broker.start()
        try:
            self._listen = self.broker.bootstrap
            self._intercept(self.broker._client._running)
            self.broker.wait_until_ready()
        except BaseException:
            self.broker.kill()
            raise

    # --- the machine ----------------------------------------------------------------------------------

    def power_cut(self) -> None:
        """Cut the power and start again: of what was not synced, any part that a real disk may leave stays.

        Connections break. What was acknowledged at the level `synced` is there; a topic at `replicated` has
        no leader until an operator decides, because the only replica may have lost records.
        """
        self._boots += 1
        self._restart(lambda: self._memory.power_cut(self.random))

    def kill(self) -> None:
        """Kill the process and start it again: everything that was written stays."""
        self._restart(self._memory.survivor)

    def _restart(self, leave: Callable[[], MemoryDisk]) -> None:
        if self._is_over:
            raise RuntimeError("the `with` block of this broker has ended; begin another")
        delay_s = self.disk.sync_delay_s
        self.broker.kill("the test did")
        self._memory = leave()
        self.disk = _SlowDisk(self._memory)
        self.disk.sync_delay_s = delay_s
        self._start()

    def rot(self, topic: str, partition: int = 0, *, suffix: str = ".log") -> tuple[str, int]:
        """Flip a bit in a file of the partition, on the disk; return the file's name and the byte.

        `suffix` chooses the kind of file: `.log`, `.index`, `.timeindex`, `.txnindex`, `.snapshot` or a whole
        name. Raises `FileNotFoundError` if there is none that holds anything.
        """
        directory = f"{LOG_DIR}/{topic}-{partition}"
        if f"{topic}-{partition}" not in {each.name for each in self._memory.scan(LOG_DIR)}:
            raise FileNotFoundError(f"the broker has no log of {topic}-{partition}")
        names = [each for each in self._memory.scan(directory) if each.name.endswith(suffix) and each.size]
        if not names:
            raise FileNotFoundError(f"{topic}-{partition} has no {suffix} file with a byte in it")
        chosen = self.random.choice(names)
        with closing(self._memory.open(f"{directory}/{chosen.name}", write=True)) as file:
            byte = self.random.randrange(file.size())
            file.pwrite(bytes([file.pread(1, byte)[0] ^ 1 << self.random.randrange(8)]), byte)
            file.sync()
        return chosen.name, byte

    def fill_disk(self, spare_bytes: int = 0) -> None:
        """Leave room for `spare_bytes` on the disk, until `free_disk`. Raises `ValueError` below 0."""
        self._memory.capacity = self._memory._used + as_int(spare_bytes, "spare_bytes")

    def free_disk(self) -> None:
        """Make room again."""
        self._memory.capacity = None

    def slow_disk(self, seconds: float) -> None:
        """Make every sync of a log take that much longer; 0 for none. Raises `ValueError` below 0."""
        self.disk.sync_delay_s = as_seconds(seconds, "seconds")

    # --- requests -------------------------------------------------------------------------------------

    def fail_next(self, request: str, error: ErrorCode, *, topic: str | None = None, times: int = 1) -> None:
        """Answer the next `times` requests of this kind with `error`, without handling them.

        `request` has Kafka's name: Produce, Fetch, Metadata, ListOffsets, OffsetCommit, JoinGroup, …. With
        `topic` only requests that name the topic count. Raises `ValueError` for a kind that is not served,
        for what is no error, and for less than one time.
        """
        if ErrorCode(error) is ErrorCode.NONE:
            raise ValueError("NONE (0) is no error; delay_next lets a request succeed later")
        self._plan(request, _Planned(ErrorCode(error), 0.0, topic), times)

    def delay_next(self, request: str, seconds: float, *, topic: str | None = None, times: int = 1) -> None:
        """Handle the next `times` requests of this kind after `seconds`; see `fail_next`."""
        self._plan(request, _Planned(None, as_seconds(seconds, "seconds"), topic), times)

    @property
    def planned(self) -> int:
        """How many failures and delays have not met their request yet."""
        return sum(map(len, self._planned.values()))

    def _plan(self, request: str, planned: _Planned, times: int) -> None:
        keys = [key for key, api in APIS.items() if api.name == request]
        if not keys:
            names = ", ".join(sorted(api.name for api in APIS.values() if api.advertised))
            raise ValueError(f"{request!r} is no kind of request; name one of {names}")
        self._planned.setdefault(keys[0], []).extend([planned] * as_int(times, "times", least=1))

    def _intercept(self, broker: Assembly) -> None:
        dispatch = broker.dispatch
        dispatch._handlers = {
            key: partial(self._handled, key, handler) for key, handler in dispatch._handlers.items()
        }

    def _handled(
        self, key: int, handler: Handler, call: Call, body: Struct, services: Services
    ) -> Struct | None:
        waiting = self._planned.get(key, [])
        planned = next((each for each in waiting if each.topic is None or _is_about(body, each.topic)), None)
        if planned is None:
            return handler(call, body, services)
        waiting.remove(planned)
        if planned.error is not None:
            return refusal(body, APIS[key].response, planned.error)
        services.later(call, round(planned.delay_s * 1000), lambda: handler(call, body, services))
        return None


def refusal(request: Struct, kind: type[Struct], error: ErrorCode) -> Struct:
    """Return a response of `kind` that carries `error` wherever that kind has an error code.

    Its lists repeat those of the request: the same topics and partitions, each with the error.
    """
    made = kind()
    for name, field in kind.FIELDS.items():
        if name == "error_code":
            setattr(made, name, int(error))
        elif field.is_array and isinstance(field.element, type):
            element = field.element
            setattr(made, name, [refusal(part, element, error) for part in _parts_like(request, element)])
        elif (same := _NAMES.get(name, name)) in _called(type(request)):
            asked = next(each for each in request.FIELDS if _NAMES.get(each, each) == same)
            setattr(made, name, getattr(request, asked))
    return made


_NAMES: Final = {"index": "partition", "partition_index": "partition", "topic": "name"}
"""What requests and responses call differently."""


def _parts_like(request: Struct, element: type[Struct]) -> list[Struct]:
    """Return the parts of the request that are about what the parts of the response are about."""
    about = _called(element) & {"name", "partition", "group_id", "member_id"}
    found: list[Struct] = []
    for name, field in request.FIELDS.items():
        if field.is_array and isinstance(field.element, type) and about & _called(field.element):
            found += getattr(request, name) or ()
    return found


def _called(kind: type[Struct]) -> set[str]:
    return {_NAMES.get(each, each) for each in kind.FIELDS}


def _is_about(request: Struct, topic: str) -> bool:
    """Return whether a part of the request names the topic."""
    for name, field in request.FIELDS.items():
        value = getattr(request, name)
        is_list = field.is_array and isinstance(field.element, type)
        if name in ("name", "topic") and value == topic:
            return True
        if is_list and any(_is_about(part, topic) for part in value or ()):
            return True
    return False
