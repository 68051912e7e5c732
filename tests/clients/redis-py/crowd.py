"""Many workers side by side, and a gauge of how many are somewhere at once."""

import threading


def in_threads(count, work):
    """Runs work(0) ... work(count - 1) side by side and raises what one of them raised."""
    errors = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a worker hangs"


class Gauge:
    """How many are inside at once, and the most there ever were."""

    def __init__(self):
        self.lock = threading.Lock()
        self.inside = self.most = self.entered = 0

    def __enter__(self):
        with self.lock:
            self.inside += 1
            self.entered += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_):
        with self.lock:
            self.inside -= 1
