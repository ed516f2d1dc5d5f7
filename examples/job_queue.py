"""A job queue with workers: jobs that fail are retried, and a poisonous one ends among the dead letters.

    python examples/job_queue.py DIRECTORY

Stop it at any moment and start it again: what was not acknowledged is delivered again.
"""

from __future__ import annotations

import sys
import threading

from logstore import Message, Queue, QueueConfig

WORKERS, JOBS = 4, 20


def handle(message: Message) -> str:
    number = int(message.value)
    if number == 13:
        raise ValueError("nobody likes this one")
    if number % 5 == 0 and message.deliveries == 1:
        raise ConnectionError("try again")
    return f"{message.topic} {number} done, delivery {message.deliveries}"


def work(queue: Queue) -> None:
    while (message := queue.get(timeout=0.2)) is not None:
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
        workers = [threading.Thread(target=work, args=[queue]) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for letter in queue.dead_letters():
            print(f"dead: {letter.message.value.decode()}: {letter.reason}")


if __name__ == "__main__":
    main(sys.argv[1])
