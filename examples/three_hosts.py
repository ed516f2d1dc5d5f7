"""A log on three hosts, in one program: the leader is killed, and nothing that was acknowledged is lost.

    python examples/three_hosts.py DIRECTORY

Each broker has its own directory, thread and port, as on a host of its own. On three real hosts each program
runs one `Broker` with `metadata="zookeeper://…"`; everything below stays the same.
"""

from __future__ import annotations

import sys

from logstore.broker import BrokerCluster


def main(directory: str) -> None:
    # Each append waits for two hosts, so one can die at any time, also just after all have started again.
    with BrokerCluster(3, directory=directory, settings={"min.insync.replicas": "2"}) as hosts:
        if "orders" not in hosts.topics():
            hosts.create_topic("orders", 1)  # three replicas
        orders = hosts.topic("orders").partition(0)
        orders.append([b"placed", b"paid"])  # returns when every replica in sync has them
        leader = hosts.leader("orders")
        hosts.kill(leader)
        orders.append(b"shipped")  # waits for the next leader
        print(f"host {leader} died; host {hosts.leader('orders')} leads")
        hosts.start(leader)
        cursor = orders.cursor("billing")
        for record in cursor.read():
            print(record.offset, record.value.decode() if record.value else None)
        cursor.commit()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
