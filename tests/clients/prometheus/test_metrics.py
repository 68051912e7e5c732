"""/metrics: Prometheus' own parser reads it, and it says what redis_exporter says of the same server."""

import os
import re
import shutil
import subprocess
import time
import unittest
import urllib.request

import redis
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families
from server import ServerTest

# What dashboards 763 and 11835 and redis-mixin query.
QUERIED = """
redis_up redis_uptime_in_seconds redis_connected_clients redis_blocked_clients redis_memory_used_bytes redis_memory_max_bytes
redis_commands_total redis_commands_duration_seconds_total redis_keyspace_hits_total redis_keyspace_misses_total
redis_net_input_bytes_total redis_net_output_bytes_total redis_db_keys redis_db_keys_expiring redis_expired_keys_total
redis_evicted_keys_total redis_commands_processed_total redis_connected_slaves redis_memory_used_rss_bytes
redis_mem_fragmentation_ratio redis_instance_info redis_exporter_last_scrape_error redis_slowlog_length redis_slowlog_last_id
redis_rdb_last_save_timestamp_seconds redis_errors_total redis_latency_percentiles_usec redis_config_maxclients
redis_total_system_memory_bytes redis_connected_slave_lag_seconds redis_connected_slave_offset_bytes redis_master_repl_offset
""".split()
# Not of redis_exporter, or only of a cluster or a replica.
QUERIED_TOO = ["redis_memory_fragmentation_ratio", "redis_cluster_state", "redis_cluster_slots_fail", "redis_cluster_slots_pfail"]
# Times and sizes, and rates of both: each is another one at the next moment, however near. Here they only have to be there.
MEASURED = re.compile(
    "redis_(uptime|memory_used|mem_|allocator|cpu_|commands_duration|latency_percentiles|slowlog|last_slow|start_time|exporter_|"
    "eventloop|db_avg_ttl|connected_slave_lag|instantaneous|clients_in|aof_pending|aof_delayed|repl_backlog|loading)"
)
# They grow, also by what the exporter asks between its answer and ours.
GROWING = re.compile("redis_(net_|commands_|connections_received|total_reads|total_writes|master_repl|connected_slave_offset)")
# The exporter and this test are clients.
MOVING = re.compile("redis_connected_clients")


def samples(text):
    """Name and labels of each sample, and its value; and the types of families."""
    found, types = {}, {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        types[family.name] = family.type
        for sample in family.samples:
            name = (sample.name, tuple(sorted(sample.labels.items())))
            assert name not in found, f"{name} stands there twice"
            found[name] = sample.value
    return found, types


class MetricsTest(ServerTest):
    port, http_port = free_port(), free_port()
    arguments = ["--http-port", str(http_port), "--port", str(port), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"]

    def setUp(self):
        super().setUp()
        self.needs_own_commands()
        client = self.redis
        client.set("a", 1)
        client.set("b", 2, ex=1000)
        client.set("gone", 1, px=1)
        client.get("a")
        client.get("nosuch")
        client.execute_command("SELECT", 3)
        client.set("c", 1)
        client.execute_command("SELECT", 0)
        client.slowlog_reset()
        for wrong in (["LPUSH", "a", "b"], ["NOSUCH"], ["EVAL", "return redis.call('GET')", 0]):
            with self.assertRaises(redis.exceptions.ResponseError):
                client.execute_command(*wrong)
        client.execute_command("LOCK.ACQUIRE", "lock", "me", "PX", 100_000)
        time.sleep(0.05)

    def scrape(self, path="/metrics", port=None):
        with urllib.request.urlopen(f"http://127.0.0.1:{port or self.http_port}{path}", timeout=20) as answer:
            return answer.read().decode()

    def test_prometheus_reads_what_is_told(self):
        found, types = samples(self.scrape())
        names = {name for name, _ in found}
        for name in QUERIED + QUERIED_TOO:
            # Of replicas: none is connected.
            if "connected_slave_" not in name:
                self.assertIn(name, names)
        self.assertEqual(types["latchkey_loop_turn_seconds"], "histogram")
        self.assertEqual(types["redis_latency_percentiles_usec"], "summary")
        self.assertEqual(types["redis_keyspace_hits"], "counter")
        self.assertEqual(found["latchkey_locks_held", ()], 1)
        self.assertEqual(found["redis_db_keys", (("db", "db0"),)], 3)
        buckets = [(labels, value) for (name, labels), value in found.items() if name == "latchkey_loop_turn_seconds_bucket"]
        self.assertEqual(sorted(value for _, value in buckets), [value for _, value in buckets])
        groups, _ = samples(self.scrape("/metrics/locks?group=1&top=100"))
        self.assertEqual(groups["latchkey_group_locks_held", (("group", "lock"),)], 1)

    def test_names_of_errors_and_users_are_escaped(self):
        with self.assertRaises(redis.exceptions.ResponseError):
            self.redis.eval("return redis.error_reply('A\"B\\\\C some error')", 0)
        found, _ = samples(self.scrape())
        self.assertEqual(found["redis_errors_total", (("err", 'A"B\\C'),)], 1)

    @unittest.skipUnless(shutil.which("prometheus-redis-exporter"), "prometheus-redis-exporter is not installed")
    def test_redis_exporter_says_the_same(self):
        self.replica()
        exporter_port = free_port()
        exporter = subprocess.Popen(
            ["prometheus-redis-exporter", f"--redis.addr=redis://127.0.0.1:{self.port}", "--include-system-metrics",
             f"--web.listen-address=127.0.0.1:{exporter_port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        try:
            theirs = self.theirs(exporter_port)
            ours, our_types = samples(self.scrape())
        finally:
            exporter.terminate()
            exporter.wait(20)
        their_samples, their_types = theirs
        ours_by_name = {name for name, _ in ours}
        for name in QUERIED:
            self.assertIn(name, {name for name, _ in their_samples} | {"redis_total_system_memory_bytes"})
            self.assertIn(name, ours_by_name)
        compared, measured, differ = 0, 0, []
        for (name, labels), value in their_samples.items():
            if name not in ours_by_name or name == "redis_instance_info":
                continue
            there = ours.get((name, labels))
            if there is None and "cmd" in dict(labels):
                continue  # Called for the exporter alone, or not called yet.
            if there is None:
                differ.append(f"{name}{dict(labels)} is not there")
            elif MEASURED.match(name):
                measured += 1
                # A wrong unit shows in large values.
                if there < 0 <= value or (value > 1_000_000 and not value / 4 < there < value * 4):
                    differ.append(f"{name}{dict(labels)}: {there}, and {value} before")
            else:
                compared += 1
                is_growing = GROWING.match(name) and there >= value
                if there != value and not is_growing and not MOVING.match(name):
                    differ.append(f"{name}{dict(labels)}: {there}, not {value}")
        for name, kind in their_types.items():
            if name in our_types and our_types[name] != kind:
                differ.append(f"{name} is a {our_types[name]}, not a {kind}")
        self.assertEqual(differ, [])
        missing = sorted({name for name, _ in their_samples if name.startswith("redis_")} - ours_by_name)
        print(f"\n  {compared} samples agree, {measured} are there; redis_exporter alone has: {' '.join(missing)}")
        self.assertGreater(compared, 130)
        self.assertGreater(measured, 50)

    def replica(self):
        port = free_port()
        command = [os.environ["LATCHKEY"], "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--replicaof", f"127.0.0.1 {self.port}"]
        process = subprocess.Popen(command, cwd=self.folder.name, stdout=subprocess.DEVNULL)
        self.addCleanup(process.wait, 20)
        self.addCleanup(process.terminate)
        deadline = time.monotonic() + 20
        while self.redis.info("replication").get("slave0", {}).get("state") != "online":
            self.assertLess(time.monotonic(), deadline, "the replica is late")
            time.sleep(0.05)

    def theirs(self, port):
        deadline = time.monotonic() + 20
        while True:
            try:
                return samples(self.scrape(port=port))
            except OSError:
                self.assertLess(time.monotonic(), deadline, "the exporter is late")
                time.sleep(0.05)


if __name__ == "__main__":
    unittest.main()
