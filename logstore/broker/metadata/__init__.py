"""The embedded metadata store for brokers: in their own process, or served to several."""
