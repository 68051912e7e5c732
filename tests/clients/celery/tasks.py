"""The tasks that the worker runs and the tests call; SOCKET names the server for both."""

import os
import time

from celery import Celery

url = "redis+socket://" + os.environ["SOCKET"]
app = Celery("tasks", broker=url, backend=url)
app.conf.update(
    broker_connection_retry_on_startup=True,
    result_expires=600,
    task_track_started=True,
    broker_transport_options={"visibility_timeout": 600, "priority_steps": [0, 5, 9], "queue_order_strategy": "priority"},
)


@app.task
def add(x, y):
    return x + y


@app.task
def when():
    return time.time()


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=2)
def third_time_lucky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.01)
    return self.request.retries


@app.task
def fail():
    raise ValueError("no use")
