"""Hand-overs of redis-py's Lock: `handover.py PORT WAITERS ROUNDS SECONDS`, as benches/peers/src/locks.rs asks for.

Each thread takes the lock, gives it back, and asks again when somebody else has it.
"""

import sys
import threading
import time

import redis

port, waiters, rounds, seconds = map(int, sys.argv[1:])
client = redis.Redis(port=port, max_connections=waiters + 10)
times, released_at, turn = [], 0, 0
changed, begin = threading.Condition(), threading.Event()


def take_turns():
    global released_at, turn
    while True:
        # A lease longer than a run, as for the others. How often it asks is the library's choice.
        lock = client.lock("lock", timeout=3600)
        lock.acquire()
        now = time.perf_counter_ns()
        with changed:
            turn += 1
            mine = turn
            changed.notify_all()
        begin.wait()
        if released_at:
            times.append(now - released_at)
        released_at = time.perf_counter_ns()
        lock.release()
        with changed:
            changed.wait_for(lambda: turn > mine)


for _ in range(waiters + 1):
    threading.Thread(target=take_turns, daemon=True).start()
time.sleep(2)
print("ready", flush=True)
sys.stdin.readline()
end = time.monotonic() + seconds
begin.set()
while len(times) < rounds and time.monotonic() < end:
    time.sleep(0.01)
print("\n".join(map(str, times[:rounds])), end="\n\n", flush=True)
time.sleep(60)
