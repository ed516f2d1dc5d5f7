"""The controller: who leads each partition, decided in one place, one event at a time.

    controller         the queue, and the procedures' store calls and requests as effects
      failover           claim, takeover, abdication
      broker_changes     brokers come, go, bounce; log dirs fail
      topics             topic nodes and settings appear or change
      topic_creation     a client creates topics
      isr_changes        a leader proposes another ISR
    partition_states   the one way in which a state node is written, and told
    channel            what still has to reach each broker
    context            what the active controller knows
    election, assignment, alter_partition    pure: who leads, where replicas go, what a leader may do

Another procedure (reassignment, deletion, …) is another file and one more line in `controller`.
"""
