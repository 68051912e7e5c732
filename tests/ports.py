"""Ports for servers in processes of their own."""

import errno
import itertools
import random
import socket

# The system gives 32768 and above to clients and to listeners on any port: one of those can be taken again before a server listens
# on it. The bus of a cluster listens 10000 above the port for clients.
FIRST, COUNT = 12_000, 10_000
_numbers = itertools.count(random.randrange(COUNT))


def free_port():
    """One that nobody listens on now, and that this program has not been given before."""
    while True:
        port = FIRST + next(_numbers) % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
