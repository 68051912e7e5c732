"""packaging/prometheus and packaging/grafana: promtool accepts them, and servers expose each name and label that they use."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

import redis
import yaml
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families
from server import ServerTest

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "packaging/prometheus/latchkey.rules.yml"
CASES = ROOT / "packaging/prometheus/latchkey.rules.test.yml"
DASHBOARD = ROOT / "packaging/grafana/latchkey.json"
# Words of PromQL that name no metric.
WORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool"}
# Of Prometheus itself.
SCRAPED = {"up"}
TARGET_LABELS = {"instance", "job"}


def without_braces(expression):
    """An expression without strings, matchers, ranges and lists of labels."""
    expression = re.sub(r'"[^"]*"', '""', expression)
    expression = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", expression)
    return re.sub(r"\b(by|without|on|ignoring|group_left|group_right) *\([^)]*\)", " ", expression)


def metrics_in(expression):
    words = re.findall(r"(?<![\w.:])[a-zA-Z_][\w:]*(?! *\(|[\w:])", without_braces(expression))
    return set(words) - WORDS


def matched_labels(expression):
    """Each metric with matchers, and the labels that these name."""
    for name, matchers in re.findall(r"([\w:]+)\{([^}]*)\}", expression):
        yield name, set(re.findall(r"(\w+) *[=!]", matchers))


def promtool(*arguments, cwd=None):
    return subprocess.run(["promtool", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120)


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels():
    return json.loads(DASHBOARD.read_text())["panels"]


def dashboard_expressions():
    """Panel, legend and expression of each query, with Grafana's variables filled in."""
    for panel in panels():
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*")
            yield panel["title"], target["legendFormat"], expression


class ToolsTest(unittest.TestCase):
    def test_a_name_is_told_from_the_words_of_an_expression(self):
        expression = 'sum without (reason) (rate(a_total{b=~"c|d"}[5m])) > 0.05 * time() unless on (job) (r:e offset 10m) > 64e6'
        self.assertEqual(metrics_in(expression), {"a_total", "r:e"})
        self.assertEqual(dict(matched_labels(expression)), {"a_total": {"b"}})

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_accepts_the_rules_and_their_tests(self):
        for arguments in (["check", "rules", RULES], ["test", "rules", CASES]):
            done = promtool(*arguments)
            print(f"\n  promtool {arguments[0]} {arguments[1]}: {' '.join(done.stdout.split())}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_each_alert_has_what_a_person_needs_and_a_test(self):
        alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
        self.assertEqual(len(alerts), len([rule for rule in rules() if "alert" in rule]), "an alert is there twice")
        runbook = (ROOT / "docs/runbook.md").read_text()
        anchors = {re.sub(r"[^\w -]", "", line[3:].lower()).replace(" ", "-") for line in runbook.splitlines() if line.startswith("## ")}
        fired = set()
        for case in yaml.safe_load(CASES.read_text())["tests"]:
            silent = [series for series in case["input_series"] if 'instance="good"' in series["series"]]
            self.assertTrue(silent, f"{case['name']} is never silent")
            for test in case["alert_rule_test"]:
                self.assertTrue(test["exp_alerts"], f"{test['alertname']} does not fire")
                fired.add(test["alertname"])
        self.assertEqual(fired, set(alerts))
        for name, rule in alerts.items():
            with self.subTest(name):
                self.assertIn("for", rule)
                self.assertIn(rule["labels"]["severity"], ("critical", "warning", "info"))
                self.assertIn("$labels.instance", rule["annotations"]["summary"])
                document, anchor = rule["annotations"]["runbook"].split("#")
                self.assertEqual(document, "docs/runbook.md")
                self.assertIn(anchor, anchors)

    def test_the_dashboard_has_the_form_that_grafana_reads(self):
        dashboard = json.loads(DASHBOARD.read_text())
        self.assertLessEqual({"title", "schemaVersion", "templating", "panels", "time"}, set(dashboard))
        self.assertIn("datasource", [variable["type"] for variable in dashboard["templating"]["list"]])
        self.assertNotIn("uid", dashboard)
        self.assertEqual(set(re.findall(r'"uid": "([^"]*)"', DASHBOARD.read_text())), {"${datasource}"})
        numbers, taken = set(), set()
        for panel in dashboard["panels"]:
            self.assertIn(panel["type"], ("row", "stat", "timeseries"))
            self.assertTrue(panel["title"])
            self.assertNotIn(panel["id"], numbers)
            numbers.add(panel["id"])
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24)
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(cells & taken, f"{panel['title']} covers another panel")
            taken |= cells
            references = [target["refId"] for target in panel.get("targets", [])]
            self.assertEqual(len(references), len(set(references)))
            self.assertEqual(panel["type"] == "row", not references)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_parses_each_expression_of_the_dashboard(self):
        recorded = [{"record": f"panel:{number}", "expr": expression} for number, (_, _, expression) in enumerate(dashboard_expressions())]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "dashboard.yml")
            file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
            done = promtool("check", "rules", file)
        print(f"\n  {len(panels())} panels and rows: {' '.join(done.stdout.split()[2:])}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


class NamesTest(ServerTest):
    """What servers expose together, with all that adds metrics."""

    port, http_port, tls_port = free_port(), free_port(), free_port()
    certificates = os.environ["TLS_CERTIFICATES"]
    arguments = ["--http-port", str(http_port), "--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes"]
    arguments += ["--page-keys", "jobs mail", "--repl-diskless-sync-delay", "0", "--tls-port", str(tls_port)]
    for option, file in (("cert", "server.crt"), ("key", "server.key"), ("ca-cert", "ca.crt")):
        arguments += [f"--tls-{option}-file", f"{certificates}/{file}"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        client = cls.connect()
        # A family whose samples are labelled needs one to show its labels.
        client.xadd("mail", {"to": "a"})
        client.xgroup_create("mail", "senders", 0)
        client.xreadgroup("senders", "one", {"mail": ">"})
        client.config_set("slowlog-log-slower-than", 0)
        client.get("a")
        client.config_set("slowlog-log-slower-than", 10_000)
        client.config_set("maxmemory", 1)
        try:
            client.set("a", 1)
            raise AssertionError("a write above maxmemory is refused")
        except redis.exceptions.OutOfMemoryError:
            pass
        client.config_set("maxmemory", 1_000_000_000)
        cls.worker = threading.Thread(target=lambda: cls.connect().blpop("jobs", 60), daemon=True)
        cls.worker.start()
        _, replica_http = cls.start("--replicaof", f"127.0.0.1 {cls.port}")
        # It has no data; the other one has some, and asks it for more.
        empty, empty_http = cls.start("--repl-protect-empty-primary", "yes", "--primary-restart-read-only", "30")
        asks, _ = cls.start("--replicaof", f"127.0.0.1 {cls.port}")
        deadline = time.monotonic() + 20
        while client.info("replication").get("slave1", {}).get("state") != "online" or client.info("clients")["blocked_clients"] < 1:
            assert time.monotonic() < deadline, "the replicas or the worker are late"
            time.sleep(0.05)
        cls.scraped = {"primary": cls.scrape(cls.http_port), "replica": cls.scrape(replica_http)}
        client.set("b", 1)
        while redis.Redis(port=asks).get("b") is None:
            assert time.monotonic() < deadline, "a write is late"
            time.sleep(0.05)
        redis.Redis(port=asks).replicaof("127.0.0.1", empty)
        while not redis.Redis(port=empty).info("replication").get("primary_lacks_data_of_replicas"):
            assert time.monotonic() < deadline, "the replica without a primary is late"
            time.sleep(0.05)
        client.rpush("jobs", "done")
        cls.families, cls.labels = {}, {}
        for text in [*cls.scraped.values(), cls.scrape(empty_http)]:
            for family in text_string_to_metric_families(text):
                ends = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}.get(family.type, ("",))
                for end in ends:
                    cls.families[family.name + end] = family
                for sample in family.samples:
                    cls.families[sample.name] = family
                    cls.labels.setdefault(sample.name, set()).update(sample.labels)

    @classmethod
    def tearDownClass(cls):
        cls.worker.join(20)
        super().tearDownClass()

    def setUp(self):
        """Keys stay."""

    @classmethod
    def start(cls, *options):
        """Ports of a further server: for clients, and for HTTP."""
        port, http_port = free_port(), free_port()
        command = [os.environ["LATCHKEY"], "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dbfilename", f"{port}.rdb"]
        command += ["--http-port", str(http_port), *options]
        process = subprocess.Popen(command, cwd=cls.folder.name, stdout=subprocess.DEVNULL)
        cls.addClassCleanup(process.wait, 20)
        cls.addClassCleanup(process.terminate)
        return port, http_port

    @classmethod
    def scrape(cls, port):
        deadline = time.monotonic() + 20
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                    return answer.read().decode()
            except OSError:
                assert time.monotonic() < deadline, "HTTP is late"
                time.sleep(0.05)

    def look(self, where, expression, used, recorded):
        """Whether servers expose what an expression names, and the labels that are `used` beside it."""
        own = TARGET_LABELS.copy()
        names = metrics_in(expression)
        self.assertTrue(names, f"{where}: {expression}")
        for name in names:
            if name in recorded:
                own |= recorded[name]
                continue
            self.assertTrue(name in self.families or name in SCRAPED, f"{where}: no server exposes {name}")
            own |= self.labels.get(name, set())
        for name, labels in matched_labels(expression):
            if name in self.labels:
                self.assertLessEqual(labels, self.labels[name] | TARGET_LABELS, f"{where}: {name}")
        self.assertLessEqual(used, own, f"{where}: {expression}")
        return own

    def test_servers_expose_what_the_rules_name(self):
        recorded = {}
        for rule in rules():
            used = set(re.findall(r"\$labels\.(\w+)", rule.get("annotations", {}).get("summary", "")))
            labels = self.look(rule.get("alert") or rule["record"], rule["expr"], used, recorded)
            if "record" in rule:
                recorded[rule["record"]] = labels
        for case in yaml.safe_load(CASES.read_text())["tests"]:
            for series in case["input_series"]:
                self.look(case["name"], series["series"], set(), {})

    def test_servers_expose_what_the_dashboard_names(self):
        queries = list(dashboard_expressions())
        for panel, legend, expression in queries:
            self.look(panel, expression, set(re.findall(r"\{\{(\w+)\}\}", legend)), {})
        variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
        for name in re.findall(r"label_values\((\w+)", json.dumps(variables)):
            self.assertIn(name, self.families)
        print(f"\n  {len({name for _, _, expression in queries for name in metrics_in(expression)})} metrics in {len(queries)} queries")

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_no_alert_fires_for_a_primary_and_a_replica_that_are_well(self):
        series = []
        for instance, text in self.scraped.items():
            series.append({"series": f'up{{job="latchkey",instance="{instance}"}}', "values": "1+0x100"})
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    labels = {**sample.labels, "job": "latchkey", "instance": instance}
                    text_of_labels = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
                    series.append({"series": f"{sample.name}{{{text_of_labels}}}", "values": f"{sample.value:.9f}+0x100"})
        names = [rule["alert"] for rule in rules() if "alert" in rule]
        tests = [{"alertname": name, "eval_time": "90m", "exp_alerts": []} for name in names]
        case = {"interval": "1m", "input_series": series, "alert_rule_test": tests}
        document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "well.yml")
            file.write_text(yaml.safe_dump(document, width=10_000))
            done = promtool("test", "rules", file)
        print(f"\n  {len(names)} alerts are silent over {len(series)} series of two servers")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
