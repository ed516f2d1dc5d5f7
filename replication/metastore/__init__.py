"""The metadata store: ZooKeeper's data model, with or without ZooKeeper.

    operations   nodes, versions, watches, sessions
    layout       the nodes: Kafka's paths and JSON
    tree         the state machine, pure
    memory       over it, the store in memory, and the interface of every store
    embedded     over it, the store on disk; its bytes are in journal
    zookeeper    the real one; zookeeper_session keeps one session's order, zookeeper_requests translates

One contract suite tests every store for the same answers.
"""
