"""The metadata store: ZooKeeper's shape, with or without ZooKeeper.

    operations   the vocabulary: nodes, versions, watches, sessions
    layout       which node means what: Kafka's paths and JSON
    tree         the state machine, pure
    memory       over it, the store in memory, and the protocol that every store offers
    embedded     over it, the store on disk; its bytes are in journal
    zookeeper    the real one: zookeeper_session keeps one session's order, zookeeper_requests has the words,
                 zookeeper_blocking is for a caller who waits

One contract suite holds every store to the same answers.
"""
