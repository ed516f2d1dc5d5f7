"""Consumer groups, classic protocol: who is in a group, what each member reads, how far it has come.

    coordinator    the shell: groups by partition of __consumer_offsets, loading, appends, time
      group        one group's automaton: join, sync, heartbeat, leave, expiry; pure
      offsets      one group's committed offsets; pure
      records      what is written to __consumer_offsets, in Kafka's own format
    requests       what can be asked and answered
    config         settings, under Kafka's names

No sockets and no event loop here: whoever has them translates the wire's messages into `requests`, and
carries out what `Coordinator` returns. docs/consumer-groups.md tells the whole story.
"""
