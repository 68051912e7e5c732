"""A server of the built binary, and clients that speak its protocol by hand."""

import os
import socket
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ports import free_port  # noqa: E402


class Server:
    def __init__(self, *arguments):
        self.folder = tempfile.TemporaryDirectory()
        self.port, self.http_port = free_port(), free_port()
        if "--cluster-enabled" in arguments:
            self.cluster_port = free_port()
            arguments = (*arguments, "--cluster-port", str(self.cluster_port))
        command = [os.environ["LATCHKEY"], "--port", str(self.port), "--http-port", str(self.http_port)]
        command += ["--bind", "127.0.0.1", "--save", "", *arguments]
        log = os.path.join(self.folder.name, "log")
        with open(log, "wb") as file:
            self.process = subprocess.Popen(command, cwd=self.folder.name, stdout=file)
        deadline = time.monotonic() + 20
        while True:
            try:
                return self.client().close()
            except ConnectionRefusedError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    with open(log, errors="replace") as file:
                        print(file.read())
                    raise
                time.sleep(0.02)

    def client(self, name=None):
        return Client(self.port, name)

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.folder.cleanup()


class Client:
    def __init__(self, port, name=None):
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.file = self.socket.makefile("rb")
        if name:
            self.call("CLIENT", "SETNAME", name)

    def send(self, *arguments):
        request = b"*%d\r\n" % len(arguments)
        for argument in arguments:
            data = argument if isinstance(argument, bytes) else str(argument).encode()
            request += b"$%d\r\n%s\r\n" % (len(data), data)
        self.socket.sendall(request)

    def call(self, *arguments):
        self.send(*arguments)
        return self.reply()

    def reply(self):
        line = self.file.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        raise RuntimeError(f"no reply: {line!r}")

    def close(self):
        self.file.close()
        self.socket.close()
