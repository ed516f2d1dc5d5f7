"""Verify the replicas of partitions: faults of single replicas, and differences between them. Without Spark.

    planning     find the replicas; cut them into runs of segments, and into stretches to compare
    check        one run: its batches, its faults, and a sum for each stretch
    compare      one stretch in all replicas, batch by batch; compare_records: after compaction
    findings     all results, each fault once, with the odd replica named

`logstore/spark/jobs/verify.py` hands runs and stretches to Spark and gathers the reports here.
"""
