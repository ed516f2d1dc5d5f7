"""What nodes say to each other, in Kafka's words: `translation.py`."""
