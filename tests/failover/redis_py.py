"""Writes numbered keys through redis-py's Sentinel support, one after the other: its standard output has each acknowledged number
with its time (Unix, in microseconds), its standard error each error. It ends with its standard input.

    redis_py.py SENTINEL_PORT ...
"""

import sys
import threading
import time

from redis.exceptions import RedisError
from redis.sentinel import Sentinel


def main():
    # All else is default. Since 8.0: socket_timeout and socket_connect_timeout 5 s, 10 tries with waits of up to 1 s.
    sentinels = Sentinel([("127.0.0.1", int(port)) for port in sys.argv[1:]])
    client = sentinels.master_for("main")
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    number = 0
    while not ended.is_set():
        try:
            client.set(f"redis-py:{number}", number)
            print(number, time.time_ns() // 1000, flush=True)
            number += 1
            time.sleep(0.001)
        except RedisError as error:
            print(number, time.time_ns() // 1000, type(error).__name__, error, file=sys.stderr, flush=True)
            time.sleep(0.02)


if __name__ == "__main__":
    main()
