"""The broker of the campaign, in a process that is killed and started again: LOG_DIR PORT."""

from __future__ import annotations

import sys
import threading

from logstore.broker import Broker, BrokerConfig

if __name__ == "__main__":
    with Broker(BrokerConfig(log_dirs=(sys.argv[1],), listen=f"127.0.0.1:{sys.argv[2]}")) as broker:
        print(broker.address.port, flush=True)
        threading.Event().wait()
