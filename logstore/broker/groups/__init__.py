"""Consumer groups, classic protocol: membership, assignment of partitions, committed offsets.

    coordinator    the shell: groups by partition of __consumer_offsets, loading, appends, time
      group        one group's automaton: join, sync, heartbeat, leave, expiry; pure
      offsets      one group's committed offsets; pure
      records      what is written to __consumer_offsets, in Kafka's own format
    requests       requests and responses
    config         settings, under Kafka's names

No sockets and no event loop here: the broker translates the wire's messages into `requests` and carries out
the effects that `Coordinator` returns. docs/consumer-groups.md explains the design.
"""
