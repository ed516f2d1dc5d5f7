"""Replicas of partitions beside each other: what is wrong in one, and where they differ. No Spark in here.

    replicas     which replica lies where, by listing alone
    planning     replicas ──► runs: files that are swept in one go, and the stretches they are compared by
    check        one run: batches and their faults, and a sum for each stretch
    compare      one stretch in all replicas, batch by batch; compare_records: what compaction went over
    findings     what all of it says: each thing once, with the odd one named

`logstore/spark/jobs/verify.py` hands runs and stretches out to Spark and gathers their reports here.
"""
