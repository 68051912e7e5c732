"""The cluster tests of redis-py's own suite, from its source distribution, on six nodes of the built binary (see ../nodes.py).

`suite.py ARCHIVE` unpacks the tests beside the archive, in a copy that has the nodes' ports where the suite has fixed ones.
`skipped.txt` has the tests that are not run, each with its reason; pytest tells at the end of all that were skipped, and why. Tests
that the suite itself keeps from clusters are deselected.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tracemalloc

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = [
    "tests/test_cluster.py",
    "tests/test_cluster_transaction.py",
    "tests/test_asyncio/test_cluster.py",
    "tests/test_asyncio/test_cluster_transaction.py",
]
# The suite's first two nodes.
PORTS = re.compile(r"\b(16379|16380)\b")
# For a message that must come. A busy machine is slower.
PATIENCE = re.compile(r"(wait_for_message\(\w+, timeout)=0\.5")


def unpack(archive, ports):
    """The folder of the tests."""
    folder = archive.removesuffix(".tar.gz")
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as content:
        content.extractall(os.path.dirname(archive), filter="data")
    # The installed package is the one that is tested.
    shutil.rmtree(os.path.join(folder, "redis"))
    for name in FILES:
        with open(os.path.join(folder, name), "r+") as file:
            text = PORTS.sub(lambda found: ports[int(found[1]) - 16379], PATIENCE.sub(r"\1=20", file.read()))
            file.seek(0)
            file.write(text)
            file.truncate()
    return folder


class Selection:
    """Skips what `skipped.txt` names, and fails if there is no such test; deselects what is for a single server."""

    def __init__(self):
        with open(os.path.join(HERE, "skipped.txt")) as file:
            lines = [line.strip() for line in file]
        self.reasons = dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))

    def pytest_collection_modifyitems(self, items, config):
        # Each asynchronous test is there once more for a client of one connection, which a cluster's client never is.
        single = [item for item in items if "[single" in item.nodeid]
        items[:] = [item for item in items if item not in single]
        config.hook.pytest_deselected(items=single)
        found = set()
        for item in items:
            name = item.nodeid.split("[")[0]
            if name in self.reasons:
                found.add(name)
                item.add_marker(pytest.mark.skip(reason=self.reasons[name]))
        if missing := self.reasons.keys() - found:
            raise pytest.UsageError(f"skipped.txt names what is no test: {sorted(missing)}")


def main():
    process = subprocess.Popen(
        [sys.executable, os.environ["CLUSTER_NODES"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"CLUSTER_NODE_TIMEOUT_MS": "5000"},
    )
    try:
        ports = process.stdout.readline().split()[1:]
        assert len(ports) == 6, "the nodes have not started"
        os.chdir(unpack(os.path.abspath(sys.argv[1]), ports))
        sys.path.insert(0, os.getcwd())
        # The suite traces allocations, with which it takes five times as long; warnings are for those who change redis-py.
        tracemalloc.start = lambda *_: None
        options = ["-q", "-rs", "-p", "no:cacheprovider", "-W", "ignore", "-o", "filterwarnings=", "-o", "addopts="]
        options += ["-m", "not onlynoncluster and not redismod and not ssl", f"--redis-url=redis://localhost:{ports[0]}/0"]
        # A test's limit is half a minute in the suite, which is short for a machine that does other things besides.
        options += ["-o", "timeout=120"]
        return pytest.main(options + FILES, plugins=[Selection()])
    finally:
        process.stdin.close()
        process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
