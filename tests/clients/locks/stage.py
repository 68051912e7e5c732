#!/usr/bin/env python3
"""The servers for a table of cases: `stage.py COMMAND ...` starts them, runs the command, and ends them; its status is the command's.

The command finds them in its environment: PORT of a server; RELAY of a port that leads there and loses replies when it is told
(`RELAY.LOSE n`: the next n of locks and semaphores, each with its connection; `RELAY.HOLD n`: without it); CLUSTER, ports of primaries; SENTINEL, the port
of a sentinel that watches the server as `primary`, or empty where there is no redis-server to be one; REDIS_URL of the server.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..")]
from nodes import call, until  # noqa: E402
from ports import free_port  # noqa: E402
from shutil import which  # noqa: E402


class Relay:
    """Passes bytes on in both directions, but for the replies that it is to lose."""

    TOLD = re.compile(rb"RELAY\.(LOSE|HOLD)\r\n\$\d+\r\n(\d+)\r\n")
    ASKS = re.compile(rb"\r\n(LOCK|SEM)\.(ACQUIRE|MACQUIRE|RELEASE)\r\n")

    def __init__(self, port):
        self.port, self.left = port, {b"LOSE": 0, b"HOLD": 0}

    async def meet(self, client, to_client):
        server, to_server = await asyncio.open_connection("127.0.0.1", self.port)
        asked = False

        async def replies():
            while data := await server.read(65536):
                if asked and self.left[b"LOSE"]:
                    self.left[b"LOSE"] -= 1
                    return
                if asked and self.left[b"HOLD"]:
                    self.left[b"HOLD"] -= 1
                    continue
                to_client.write(data)

        async def requests():
            nonlocal asked
            while data := await client.read(65536):
                if told := self.TOLD.search(data):
                    self.left[told[1]] = int(told[2])
                    to_client.write(b"+OK\r\n")
                else:
                    asked = bool(self.ASKS.search(data))
                    to_server.write(data)

        both = [asyncio.ensure_future(replies()), asyncio.ensure_future(requests())]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for one in both:
            one.cancel()
        to_client.close()
        to_server.close()


def answers(port):
    try:
        return call(port, "PING") == "PONG"
    except OSError:
        return False


def start(folder, command):
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


async def main():
    port, sentinel, started = free_port(), "", []
    cluster = subprocess.Popen([os.path.join(HERE, "..", "nodes.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory(prefix="latchkey") as folder:
        try:
            started.append(start(folder, [os.environ["LATCHKEY"], "--port", str(port), "--bind", "127.0.0.1", "--save", ""]))
            until(lambda: answers(port))
            if which("redis-server"):
                sentinel = free_port()
                with open(os.path.join(folder, "sentinel.conf"), "w") as file:
                    file.write(f"port {sentinel}\nbind 127.0.0.1\nsentinel monitor primary 127.0.0.1 {port} 1\n")
                started.append(start(folder, ["redis-server", "sentinel.conf", "--sentinel"]))
                until(lambda: answers(sentinel))
            relay = await asyncio.start_server(Relay(port).meet, "127.0.0.1", 0)
            ports = cluster.stdout.readline().split()[1:4]
            environment = {
                **os.environ,
                "PORT": str(port),
                "RELAY": str(relay.sockets[0].getsockname()[1]),
                "CLUSTER": " ".join(ports),
                "SENTINEL": str(sentinel),
                "REDIS_URL": f"redis://127.0.0.1:{port}",
                "REDIS_PORT": str(port),
            }
            command = await asyncio.create_subprocess_exec(*sys.argv[1:], env=environment)
            return await command.wait()
        finally:
            cluster.stdin.close()
            for process in started:
                process.terminate()
            for process in [*started, cluster]:
                process.wait(30)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
