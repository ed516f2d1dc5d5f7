"""A job queue with workers: jobs that fail are retried, and a poisonous one ends among the dead letters.

    python examples/job_queue.py DIRECTORY

Stop it at any moment and start it again: what was not acknowledged is delivered again.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from logstore import Message, Queue, QueueConfig

WORKERS, JOBS = 4, 20


def handle(message: Message) -> str:
    number = int(message.value)
    if number == 13:
        raise ValueError("nobody likes this one")
    if number % 5 == 0 and message.deliveries == 1:
        raise ConnectionError("try again")
    return f"{message.topic} {number} done, delivery {message.deliveries}"


def work(queue: Queue, stopping: threading.Event) -> None:
    while not stopping.is_set() and (message := queue.get(timeout=0.2)) is not None:
        try:
            print(handle(message))
        except Exception as error:
            queue.nack(message, delay=0.01, reason=str(error))
        else:
            queue.ack(message)


def main(directory: str) -> None:
    with Queue(directory, QueueConfig(max_deliveries=3, priorities={"urgent": 1})) as queue:
        for number in range(JOBS):
            queue.put(b"%d" % number, topic="urgent" if number % 4 == 0 else "normal")
        stopping = threading.Event()
        with ThreadPoolExecutor(WORKERS) as threads:
            try:
                for worker in [threads.submit(work, queue, stopping) for _ in range(WORKERS)]:
                    worker.result()
            finally:  # Ctrl-C: each worker ends with the job that it has, and then the queue is closed
                stopping.set()
        for letter in queue.dead_letters():
            print(f"dead: {letter.message.value.decode()}: {letter.reason}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit("stopped; start it again for the jobs that are left")
