"""Brokers beside Apache Kafka's on the same machine: `python -m bench.kafka`, or `make bench-kafka`."""
