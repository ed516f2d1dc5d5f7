"""The controller: elects the leader of each partition, in one place, one event at a time.

    controller       the queue of events; store calls and requests as effects; the tables of procedures
    procedure        the pattern of every procedure: read, decide, write if unchanged, announce
    context          the active controller's copy of the metadata
    channel          the requests that must still reach each broker
    election, assignment     pure: which replica leads, where replicas go

    failover         claim, takeover, abdication
    brokers          brokers come, go and shut down; log dirs fail; settings of all brokers
    topics           topics and settings appear or change; clients create topics and partitions
    alter_partition  a leader proposes another ISR
    elect_leaders    requested elections, and rebalancing
    reassignment     replicas move to other brokers
    deletion         topics are deleted

Each procedure file begins with its pure part. It can be resumed from the store alone.
"""
