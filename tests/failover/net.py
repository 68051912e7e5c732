"""A network in which a node can be cut off from all others: see tests/network, which makes it."""

import ctypes
import os
import subprocess
import sys

NETWORK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../network")
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def is_entered():
    return "TEST_NETWORK" in os.environ


def enter():
    """Starts this program again in a network of its own, which is gone when the process ends."""
    if not is_entered():
        os.execv(NETWORK, [NETWORK, "enter", sys.executable, *sys.argv])


def add(number):
    """A namespace for a node. Returns its address and what a command is started with in it."""
    address = subprocess.run([NETWORK, "add", str(number)], check=True, capture_output=True, text=True).stdout.strip()
    return address, ["ip", "netns", "exec", f"node{number}"]


def cut(number, is_cut):
    subprocess.run([NETWORK, "down" if is_cut else "up", str(number)], check=True)


def go_in(number):
    """The calling thread's next sockets are on the side of that node."""
    with open(f"/run/netns/node{number}") as file:
        if LIBC.setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
