"""A server of the built binary for each test program, reached by a Unix socket."""

import os
import subprocess
import tempfile
import time
import unittest

import redis


class ServerTest(unittest.TestCase):
    """Starts a server for the class; `self.connect()` gives clients of it, and each test begins with no keys."""

    arguments = []

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.socket = os.path.join(cls.folder.name, "server.sock")
        command = [os.environ["LATCHKEY"], "--port", "0", "--unixsocket", cls.socket, "--save", ""]
        cls.process = subprocess.Popen(
            command + cls.arguments, cwd=cls.folder.name, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                cls.connect().ping()
                return
            except redis.exceptions.ConnectionError:
                if time.monotonic() > deadline or cls.process.poll() is not None:
                    raise
                time.sleep(0.02)

    @classmethod
    def tearDownClass(cls):
        cls.process.terminate()
        cls.process.wait(20)
        cls.folder.cleanup()

    @classmethod
    def connect(cls, **options):
        return redis.Redis(unix_socket_path=cls.socket, decode_responses=True, **options)

    def setUp(self):
        self.redis = self.connect()
        self.redis.flushall()

    def needs_own_commands(self):
        """Skips a test of what no other server has, told by a parameter that none has: so a peer runs the others."""
        if not self.redis.config_get("redis-version"):
            self.skipTest("the server is another one")
