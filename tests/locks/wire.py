"""The protocol on a blocking socket, and servers as processes."""

import os
import signal
import socket
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ports import free_port  # noqa: E402

START_SECONDS = 30


class Gone(Exception):
    """The connection has failed, or the server does not answer."""


class Refused(Exception):
    """An error in place of a reply."""


class Connection:
    """To a path of a Unix socket, or a port of this machine."""

    def __init__(self, address, timeout=60.0):
        self.pushes = []
        try:
            if isinstance(address, int):
                self.socket = socket.create_connection(("127.0.0.1", address), timeout=timeout)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            else:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.settimeout(timeout)
                self.socket.connect(address)
        except OSError as error:
            raise Gone from error
        self.file = self.socket.makefile("rb")

    def send(self, *requests):
        parts = []
        for request in requests:
            parts.append(b"*%d\r\n" % len(request))
            for word in request:
                word = word if isinstance(word, bytes) else str(word).encode()
                parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        try:
            self.socket.sendall(b"".join(parts))
        except OSError as error:
            raise Gone from error

    def reply(self):
        """The next reply; pushes before it are kept."""
        while True:
            kind, value = self.read()
            if kind == b">":
                self.pushes.append((time.monotonic_ns(), value))
            elif isinstance(value, Refused):
                raise value
            else:
                return value

    def push(self):
        """The next push, which must come before any reply."""
        if not self.pushes:
            kind, value = self.read()
            assert kind == b">", f"a reply that nobody asked for: {value}"
            self.pushes.append((time.monotonic_ns(), value))
        return self.pushes.pop(0)

    def read(self):
        try:
            line = self.file.readline()
            if not line.endswith(b"\r\n"):
                raise Gone
            kind, rest = line[:1], line[1:-2]
            if kind == b"+":
                return kind, rest.decode()
            if kind == b"-":
                return kind, Refused(rest.decode())
            if kind == b":":
                return kind, int(rest)
            if kind in b"_":
                return kind, None
            if kind in b"$=":
                if rest == b"-1":
                    return kind, None
                text = self.file.read(int(rest) + 2)
                if len(text) != int(rest) + 2:
                    raise Gone
                return kind, text[:-2].decode(errors="surrogateescape")
            if kind in b"*>~":
                return kind, None if rest == b"-1" else [self.read()[1] for _ in range(int(rest))]
            if kind == b"%":
                return kind, {self.read()[1]: self.read()[1] for _ in range(int(rest))}
        except OSError as error:
            raise Gone from error
        raise AssertionError(f"no reply: {line!r}")

    def call(self, *request):
        self.send(request)
        return self.reply()

    def close(self):
        self.file.close()
        self.socket.close()


def ask(address, *words, timeout=10.0):
    """One command on a connection of its own."""
    connection = Connection(address, timeout)
    try:
        return connection.call(*words)
    finally:
        connection.close()


def info(address, *sections):
    lines = ask(address, "INFO", *sections).split("\r\n")
    return dict(line.split(":", 1) for line in lines if ":" in line)


def until(condition, what, seconds=20):
    """Waits until it holds; a server that does not answer yet may do so later."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = condition()
            if found:
                return found
        except (Gone, Refused, KeyError):
            pass
        time.sleep(0.005)
    raise TimeoutError(f"not within {seconds} s: {what}")


class Server:
    """A process that keeps its folder and its address over restarts."""

    def __init__(self, binary, folder, number, options, has_port=False, environment=None):
        self.binary, self.number, self.options = binary, number, list(options)
        self.folder = os.path.join(folder, f"server-{number}")
        os.mkdir(self.folder)
        self.path = os.path.join(self.folder, "socket")
        self.port = free_port() if has_port else 0
        self.address = self.port or self.path
        self.environment = {**os.environ, **(environment or {})}
        self.process = None

    def start(self, *options):
        if os.path.exists(self.path):
            os.unlink(self.path)
        command = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.path, "--dir", self.folder]
        command += ["--save", "", *self.options, *options]
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        until(self.answers, "the server answers", START_SECONDS)

    def answers(self):
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}; see {self.folder}/log")
        return ask(self.address, "PING") == "PONG"

    def signal(self, which):
        self.process.send_signal(which)
        if which == signal.SIGKILL:
            self.process.wait()

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
