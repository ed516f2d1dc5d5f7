"""What is done to three brokers, and the steps that mend it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.cli.cluster_file import existing
from logstore.cli.local_cluster import send_signal
from tests.troubles.lab import Lab

KEPT = "three"
"""A topic with three replicas."""
ONE = "one"
"""A topic with its only replica on broker 3."""
TWO = "two"
"""A topic with replicas on the brokers 3 and 2."""
LONG_SESSION = {"zookeeper.session.timeout.ms": "60000"}


# --- brokers that are gone --------------------------------------------------------------------------------


def kill_one(lab: Lab) -> None:
    lab.create(KEPT)
    lab.kill(3)


def start_3(lab: Lab) -> None:
    lab.start(3)


def kill_two(lab: Lab) -> None:
    lab.create(KEPT, min_insync_replicas="2")
    lab.kill(2, 3)


def start_both(lab: Lab) -> None:
    lab.start(2, 3)


def kill_the_only_replica(lab: Lab) -> None:
    lab.create(ONE, "3")
    lab.kill(3)


def leave_only_a_replica_that_lacks_records(lab: Lab) -> None:
    """Broker 2 is behind when broker 3, the only one in sync, dies."""
    lab.create(TWO, "3:2")
    lab.kill(2)
    lab.wait_for("broker 2 leaves the ISR", lambda: isr(lab, TWO) == [3])
    lab.append(TWO, b"only broker 3 has it")
    lab.kill(3)
    lab.start(2)


def isr(lab: Lab, topic: str) -> list[int]:
    """The ISR of a topic's only partition; empty while the controller is another one."""
    outcome = lab.run("topics", "describe", topic, "--json", "--bootstrap", lab.bootstrap)
    return [int(broker) for each in outcome.facts for broker in each["isr"]] if outcome.code == 0 else []


def kill_all(lab: Lab) -> None:
    lab.create(KEPT)
    lab.kill(1, 2, 3)


def start_all(lab: Lab) -> None:
    lab.start(1, 2, 3)


def lose_a_disk(lab: Lab) -> None:
    lab.create(KEPT)
    lab.append(KEPT, b"on all three")
    lab.kill(3)
    shutil.rmtree(lab.home(3))


def lose_the_only_replica(lab: Lab) -> None:
    """Broker 3 is back with a new disk, and had the only replica."""
    lab.create(ONE, "3")
    lab.append(ONE, b"gone")
    lab.kill(3)
    shutil.rmtree(lab.home(3))
    lab.start(3)


def accept_the_loss(lab: Lab) -> None:
    lab.ask("elect-unclean", f"{ONE}-0", "--accept-loss")


def take_the_identity_of_another(lab: Lab) -> None:
    """Broker 3 has the meta.properties of broker 2, as after a copy of a wrong directory."""
    lab.create(KEPT)
    lab.stop(3)
    own = lab.home(3) / "meta.properties"
    lab.kept["own"] = own.read_bytes()
    own.write_bytes((lab.home(2) / "meta.properties").read_bytes())
    outcome = lab.run("cluster", "start", lab.directory, 3)
    assert outcome.code == 1, outcome
    assert "belongs to broker 2" in outcome.err, outcome


def give_the_identity_back(lab: Lab) -> None:
    log = lab.run("cluster", "logs", lab.directory, 3).out
    assert "belongs to broker 2" in log, "the step says: its log says so"
    (lab.home(3) / "meta.properties").write_bytes(lab.kept["own"])
    lab.start(3)


def end_it_again_and_again(lab: Lab) -> None:
    """As the kernel does when memory is short."""
    lab.create(KEPT)
    for _ in range(3):
        lab.start(3)
        lab.kill(3)
        lab.wait_for("broker 3 is gone", lambda: len(lab.ask("brokers", "list", "--json").facts) == 2)


def use_up_the_descriptors(lab: Lab) -> None:
    """Broker 3 has a low limit, and clients that never close their connections."""
    lab.create(KEPT)
    lab.stop(3)
    start = shlex.join(
        [sys.executable, "-m", "logstore.cli.main", "cluster", "start", str(lab.directory), "3"]
    )
    subprocess.run(["bash", "-c", f"ulimit -n 160; exec {start}"], check=True, capture_output=True)
    lab.wait_until_sound()
    (port,) = (node.port for node in existing(lab.directory).nodes if node.name == "node-3")
    lab.kept["connections"] = [socket.create_connection(("127.0.0.1", port)) for _ in range(160)]
    lab.closing.append(lambda: hang_up(lab))


def hang_up(lab: Lab) -> None:
    for each in lab.kept["connections"]:
        each.close()


def raise_the_limit(lab: Lab) -> None:
    assert "no descriptor for a new connection" in lab.run("cluster", "logs", lab.directory, 3).out
    hang_up(lab)
    restart_3(lab)


def start_with_a_wrong_clock(lab: Lab) -> None:
    """The host of broker 3 had not set its clock yet when it started."""
    lab.create(KEPT)
    lab.stop(3)
    early = lab.directory / "early"
    early.mkdir()
    (early / "sitecustomize.py").write_text(
        "import time\nright = time.time_ns\ntime.time_ns = lambda: right() + 3_600 * 10**9\n"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, (str(early), os.environ.get("PYTHONPATH"))))
        )
        lab.start(3)


# --- brokers that hang ------------------------------------------------------------------------------------


def pause_one(lab: Lab) -> None:
    lab.create(KEPT)
    lab.pause(3)


def resume_3(lab: Lab) -> None:
    lab.resume(3)


def pause_the_controller(lab: Lab) -> None:
    lab.create(KEPT)
    lab.kept["controller"] = lab.controller()
    lab.pause(lab.kept["controller"])


def resume_the_controller(lab: Lab) -> None:
    """It claims to be the controller still, and gives way to the newer one."""
    lab.resume(lab.kept["controller"])


def two_controllers(lab: Lab) -> None:
    """The one that was paused goes on, and another one is active meanwhile: then that one is paused."""
    lab.create(KEPT)
    first = lab.controller()
    lab.pause(first)
    lab.wait_for("another controller", lambda: lab.controller() not in (first, -1))
    second = lab.controller()
    lab.resume(first)
    lab.wait_until_sound()
    assert lab.controller() == second, "the first gives way"
    lab.kept["controller"] = second
    lab.pause(second)


def advertise_a_wrong_address(lab: Lab) -> None:
    lab.create(KEPT)
    lab.stop(3)
    lab.set(advertised_listeners="PLAINTEXT://127.0.0.1:1")
    lab.start(3)


def advertise_its_own(lab: Lab) -> None:
    lab.stop(3)
    lab.unset("advertised.listeners")
    lab.start(3)


def drain_one(lab: Lab) -> None:
    lab.create(KEPT)
    lab.ask("brokers", "drain", 3, "--wait", 60)


def restart_3(lab: Lab) -> None:
    lab.stop(3)
    lab.start(3)


# --- the store --------------------------------------------------------------------------------------------


def kill_the_store(lab: Lab) -> None:
    lab.create(KEPT)
    send_signal(lab.directory, "metadata", signal.SIGKILL)


def start_the_store(lab: Lab) -> None:
    lab.start_store()


def pause_the_store(lab: Lab) -> None:
    lab.create(KEPT)
    send_signal(lab.directory, "metadata", signal.SIGSTOP)


def resume_the_store(lab: Lab) -> None:
    send_signal(lab.directory, "metadata", signal.SIGCONT)


# --- what does not end ------------------------------------------------------------------------------------


def delete_with_a_dead_broker(lab: Lab) -> None:
    lab.create(KEPT)
    lab.kill(3)
    lab.wait_for("broker 3 is gone", lambda: len(lab.ask("brokers", "list", "--json").facts) == 2)
    lab.ask("topics", "delete", KEPT)


def plan(lab: Lab, topic: str, *replicas: int) -> Path:
    path = lab.directory / "plan.json"
    move = {"topic": topic, "partition": 0, "replicas": replicas}
    path.write_text(json.dumps({"version": 1, "partitions": [move]}))
    return path


def reassign_to_one_that_dies(lab: Lab) -> None:
    lab.create(ONE, "1")
    if lab.controller() == 3:  # it has to carry the plan out
        restart_3(lab)
        lab.wait_until_sound()
        lab.wait_for("another controller", lambda: lab.controller() in (1, 2))
    lab.pause(3)
    lab.ask("reassign", "execute", plan(lab, ONE, 1, 3))
    lab.kill(3)


def throttle_to_nothing(lab: Lab) -> None:
    lab.create(ONE, "1")
    lab.append(ONE, *[bytes(100_000)] * 100)
    lab.ask("reassign", "execute", plan(lab, ONE, 3), "--throttle", 100)


def throttle_less(lab: Lab) -> None:
    path = plan(lab, ONE, 3)
    lab.ask("reassign", "execute", path, "--additional", "--throttle", 100_000_000)
    lab.wait_for(
        "the reassignment ends",
        lambda: lab.run("reassign", "verify", path, "--bootstrap", lab.bootstrap).code == 0,
    )


def forget_a_throttle(lab: Lab) -> None:
    """A broker that was down for a while comes back, and its fetches are still throttled."""
    lab.create(KEPT)
    lab.kill(3)
    lab.wait_for("broker 3 leaves the ISR", lambda: len(isr(lab, KEPT)) == 2)
    lab.append(KEPT, *[bytes(100_000)] * 100)
    for broker in (1, 2):
        lab.ask("configs", "alter", "--broker", broker, "--config", "leader.replication.throttled.rate=100")
    lab.ask("configs", "alter", "--topic", KEPT, "--config", "leader.replication.throttled.replicas=*")
    lab.start(3)


def remove_the_throttle(lab: Lab) -> None:
    path = plan(lab, KEPT, *replicas(lab, KEPT))
    lab.wait_for(
        "nothing moves", lambda: lab.run("reassign", "verify", path, "--bootstrap", lab.bootstrap).code == 0
    )


def replicas(lab: Lab, topic: str) -> list[int]:
    (facts,) = lab.ask("topics", "describe", topic, "--json").facts
    return [int(each) for each in facts["replicas"]]


# --- disks ------------------------------------------------------------------------------------------------


def fill_the_disk(lab: Lab) -> None:
    lab.create(ONE, "3")
    lab.fill(3, leaving=1 << 20)
    lab.append_until_refused(ONE)


def nearly_fill_the_disk(lab: Lab) -> None:
    lab.create(KEPT)
    lab.fill(3, leaving=2 << 20)


def make_room(lab: Lab) -> None:
    lab.filler(3).unlink()


def rot_before_the_start(lab: Lab) -> None:
    """A bit flips in the only replica while its broker is down."""
    lab.create(ONE, "3", segment_bytes="1048576")
    for _ in range(3):
        lab.append(ONE, *[bytes(100_000)] * 8)
    lab.stop(3)
    lab.kept["segment"] = path = sorted((lab.home(3) / f"{ONE}-0").glob("*.log"))[0]
    lab.kept["whole"] = data = path.read_bytes()
    path.write_bytes(data[:5000] + bytes((data[5000] ^ 1,)) + data[5001:])
    lab.start(3)
    lab.read(ONE)


def put_the_segment_back(lab: Lab) -> None:
    lab.stop(3)
    assert lab.run("verify", lab.home(3) / f"{ONE}-0").code == 1, "the step says: look with logstore verify"
    lab.kept["segment"].write_bytes(lab.kept["whole"])
    lab.start(3)


def rot_while_the_other_replica_is_down(lab: Lab) -> None:
    lab.create(TWO, "3:2", segment_bytes="1048576")
    for _ in range(3):
        lab.append(TWO, *[bytes(100_000)] * 8)
    lab.wait_until_sound()
    lab.stop(3)
    lab.wait_for("broker 2 leads", lambda: isr(lab, TWO) == [2])
    lab.start(3)
    lab.wait_until_sound()
    lab.kill(2)
    path = sorted((lab.home(3) / f"{TWO}-0").glob("*.log"))[0]
    with path.open("r+b") as file:
        file.seek(5000)
        (byte,) = file.read(1)
        file.seek(5000)
        file.write(bytes((byte ^ 1,)))
    lab.wait_for("broker 3 leads", lambda: lab.leader(TWO) == 3)
    lab.read(TWO)


def start_2(lab: Lab) -> None:
    lab.start(2)


# --- groups -----------------------------------------------------------------------------------------------

MEMBER = """
import sys
from kafka import KafkaConsumer

servers, name = sys.argv[1].split(","), sys.argv[2]
consumer = KafkaConsumer(
    "one", bootstrap_servers=servers, group_id="billing", auto_offset_reset="earliest", client_id=name,
    enable_auto_commit=False, session_timeout_ms=10000, max_poll_interval_ms=300000,
    request_timeout_ms=305000,
)
while not consumer.assignment():
    consumer.poll(100)
print("joined", flush=True)
if name == "hangs":
    sys.stdin.read()
while True:
    consumer.poll(100)
"""


def member(lab: Lab, client_id: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", MEMBER, lab.bootstrap, client_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    lab.closing.append(lambda: end(process))
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def joined(lab: Lab, client_id: str) -> subprocess.Popen[str]:
    process = member(lab, client_id)
    assert process.stdout is not None
    assert process.stdout.readline() == "joined\n"
    return process


def commit_and_leave(lab: Lab) -> None:
    """A group without members, and with records that wait."""
    lab.create(ONE, "3")
    lab.append(ONE, b"first")
    reset = ("groups", "reset", "billing", ONE, "--to", "latest", "--bootstrap", lab.bootstrap)
    lab.wait_for("the group has an offset", lambda: lab.run(*reset).code == 0)
    lab.append(ONE, b"second", b"third")


def give_the_group_up(lab: Lab) -> None:
    lab.ask("groups", "delete", "billing")


def read_without_committing(lab: Lab) -> None:
    commit_and_leave(lab)
    lab.kept["member"] = joined(lab, "stuck")


def mend_the_consumer(lab: Lab) -> None:
    """What its log would have shown: it is ended, and its work is done by another program."""
    end(lab.kept["member"])
    lab.wait_for(
        "the group is empty",
        lambda: lab.run("groups", "delete", "billing", "--bootstrap", lab.bootstrap).code == 0,
    )


def rebalance_for_ever(lab: Lab) -> None:
    """A member that no longer polls keeps a second one from joining."""
    lab.create(ONE, "3")
    lab.kept["member"] = joined(lab, "hangs")
    lab.kept["second"] = member(lab, "waits")


def end_the_member_that_hangs(lab: Lab) -> None:
    end(lab.kept["member"])


def lose_the_coordinator(lab: Lab) -> None:
    """The only replica of the group's offsets is on a broker that dies."""
    commit_and_leave(lab)
    lab.kill(lab.leader("__consumer_offsets"))


def start_every_broker(lab: Lab) -> None:
    lab.start(1, 2, 3)
    deleted = ("groups", "delete", "billing", "--bootstrap", lab.bootstrap)
    lab.wait_for("the group is served, and no longer needed", lambda: lab.run(*deleted).code == 0)
