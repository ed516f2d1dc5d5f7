"""A real broker on a disk that loses power: clients over sockets, and what a test can do to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from logstore.broker import BlockingClient, RequestRefused, RequestUnanswered
from logstore.broker.limits import parse_address
from logstore.broker.wire.apis import APIS
from logstore.disk.errors import ErrorCode
from logstore.testing import VolatileBroker
from logstore.testing.volatile_broker import refusal

pytest_plugins = ["pytester"]


@pytest.fixture(params=range(2))
def kafka(request: pytest.FixtureRequest) -> Iterator[VolatileBroker]:
    with VolatileBroker(seed=request.param) as broker:
        broker.broker.create_topic("orders")
        yield broker


def values(kafka: VolatileBroker, topic: str = "orders") -> list[bytes | None]:
    with BlockingClient([parse_address(kafka.bootstrap)], timeout_s=20) as client:
        return [record.value for record in client.read(topic, 0, 0)]


def test_what_was_acknowledged_outlives_power_cuts(kafka: VolatileBroker) -> None:
    address = kafka.bootstrap
    sent = []
    for cut in range(3):
        with BlockingClient([parse_address(kafka.bootstrap)], timeout_s=20) as client:
            for number in range(5):
                sent.append(b"%d-%d" % (cut, number))
                client.append("orders", sent[-1])
        kafka.power_cut()
    assert values(kafka) == sent
    assert kafka.bootstrap == address


def test_what_was_only_written_outlives_a_kill_and_not_every_power_cut() -> None:
    lost = 0
    for seed in range(6):
        settings = {"durability": "replicated", "unclean.leader.election.enable": "true"}
        with VolatileBroker(settings, seed=seed) as kafka:
            kafka.broker.create_topic("orders")
            kafka.broker.append("orders", b"one")
            kafka.kill()
            assert values(kafka) == [b"one"]
            kafka.broker.append("orders", b"two")  # the start synced the first
            kafka.power_cut()
            found = values(kafka)
            assert found in ([b"one"], [b"one", b"two"])
            lost += len(found) == 1
    assert lost, "no seed lost a record that was never synced"


def test_a_flipped_bit_is_not_served(kafka: VolatileBroker) -> None:
    kafka.broker.append("orders", [b"x" * 1000])
    before = kafka._memory.files()
    name, byte = kafka.rot("orders")
    after = kafka._memory.files()
    changed = [path for path in after if after[path] != before[path]]
    assert changed == [f"/data/orders-0/{name}"]
    assert sum(one != other for one, other in zip(after[changed[0]], before[changed[0]], strict=True)) == 1
    assert after[changed[0]][byte] != before[changed[0]][byte]
    with pytest.raises(FileNotFoundError):
        kafka.rot("orders", suffix=".txnindex")


def test_after_a_kill_rot_is_damage_and_not_a_torn_tail(kafka: VolatileBroker) -> None:
    """As on a machine that has not booted meanwhile: nothing that was acknowledged is truncated."""
    kafka.broker.append("orders", b"first")
    kafka.broker.append("orders", b"last")
    path = "/data/orders-0/00000000000000000000.log"
    kafka._memory.open(path, write=True).pwrite(b"?", 60)
    before = kafka._memory.files()[path]
    kafka.kill()
    with pytest.raises(RequestUnanswered, match="no leader"):
        kafka.broker.read("orders", 0, 0, timeout=0.1)
    assert kafka._memory.files()[path] == before


def test_a_disk_has_no_less_than_nothing_left(kafka: VolatileBroker) -> None:
    with pytest.raises(ValueError, match="spare_bytes is -1"):
        kafka.fill_disk(-1)


def test_a_full_disk_refuses_and_room_helps(kafka: VolatileBroker) -> None:
    kafka.broker.append("orders", b"before")
    kafka.fill_disk()
    with (
        BlockingClient([parse_address(kafka.bootstrap)], timeout_s=1) as client,
        pytest.raises((RequestRefused, RequestUnanswered)),
    ):
        client.append("orders", b"x" * 1000)
    kafka.free_disk()
    with BlockingClient([parse_address(kafka.bootstrap)], timeout_s=30) as client:
        client.append("orders", b"after")
    assert {b"before", b"after"} <= set(values(kafka))


def test_a_slow_disk_delays_acknowledgements(kafka: VolatileBroker) -> None:
    kafka.slow_disk(3600)
    with (
        BlockingClient([parse_address(kafka.bootstrap)], timeout_s=0.3) as client,
        pytest.raises((RequestRefused, RequestUnanswered)),
    ):
        client.append("orders", b"late")
    kafka.disk._never.set()
    kafka.slow_disk(0)
    assert values(kafka)[:1] == [b"late"]


def test_the_next_requests_of_a_kind_fail_or_wait(kafka: VolatileBroker) -> None:
    kafka.broker.create_topic("others")
    with BlockingClient([parse_address(kafka.bootstrap)], timeout_s=20) as client:
        client.append("orders", b"first")
        kafka.fail_next("Produce", ErrorCode.INVALID_RECORD, topic="orders")
        client.append("others", b"not this one")
        with pytest.raises(RequestRefused) as refused:
            client.append("orders", b"refused")
        assert refused.value.error is ErrorCode.INVALID_RECORD
        assert kafka.planned == 0
        kafka.fail_next("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=2)
        client.append("orders", b"retried")
        assert kafka.planned == 0
        kafka.delay_next("Produce", 0.05)
        client.append("orders", b"delayed")
        assert kafka.planned == 0
    assert values(kafka) == [b"first", b"retried", b"delayed"]
    with pytest.raises(ValueError, match="no kind of request"):
        kafka.fail_next("Nonsense", ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize(
    ("misuse", "text"),
    [
        (lambda kafka: kafka.fail_next("Produce", ErrorCode.NONE), "is no error"),
        (lambda kafka: kafka.fail_next("Produce", "INVALID_RECORD"), "not a valid ErrorCode"),
        (lambda kafka: kafka.fail_next("Produce", ErrorCode.INVALID_RECORD, times=0), "times is 0"),
        (lambda kafka: kafka.delay_next("Produce", -1), "seconds is -1"),
        (lambda kafka: kafka.slow_disk("x"), "seconds is a number of seconds"),
        (lambda kafka: kafka.fill_disk(-1), "spare_bytes is -1"),
        (lambda kafka: kafka.rot("orders", 7), "no log of orders-7"),
        (lambda kafka: kafka.rot("orders", suffix=".nope"), "orders-0 has no .nope file"),
    ],
)
def test_misuse_is_refused_at_once(
    kafka: VolatileBroker, misuse: Callable[[VolatileBroker], object], text: str
) -> None:
    with pytest.raises((TypeError, ValueError, FileNotFoundError), match=text):
        misuse(kafka)
    kafka.broker.append("orders", b"first")
    assert values(kafka) == [b"first"]


def test_after_its_block_it_does_not_start_again() -> None:
    with VolatileBroker() as kafka:
        pass
    for call in (kafka.power_cut, kafka.kill):
        with pytest.raises(RuntimeError, match="block of this broker has ended"):
            call()


@pytest.mark.parametrize("api", [api for api in APIS.values() if api.advertised], ids=lambda api: api.name)
def test_every_kind_of_response_can_carry_an_error(api) -> None:  # type: ignore[no-untyped-def]
    from logstore.broker.wire.codec import encoder

    found = refusal(api.request(), api.response, ErrorCode.REQUEST_TIMED_OUT)
    assert isinstance(found, api.response)
    for version in api.served:
        assert encoder(api.response, version) is not None


def test_as_a_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_mine(volatile_broker):
            volatile_broker.broker.create_topic("orders")
            volatile_broker.broker.append("orders", b"placed")
            volatile_broker.power_cut()
            assert [r.value for r in volatile_broker.broker.read("orders", 0, 0)] == [b"placed"]
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
