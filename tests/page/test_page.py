"""The page, in a real browser: a person looks for a stuck lock, sees who holds it and who waits, and breaks it."""

import shlex
import time
import unittest

from browser import Browser
from server import Server

TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        self.server = Server("--latency-tracking", "yes", "--slowlog-log-slower-than", "0")
        self.clients = []
        self.browser.resize(1200, 900)

    def tearDown(self):
        for client in self.clients:
            client.close()
        self.server.close()

    def client(self, name):
        self.clients.append(self.server.client(name))
        return self.clients[-1]

    def hold(self, key, owner, *more, ms=600_000):
        client = self.client(owner)
        self.assertGreater(client.call("LOCK.ACQUIRE", key, owner, "PX", ms, *more)[0], 0)
        return client

    def wait(self, key, owner, client=None):
        client = client or self.client(owner)
        client.send("LOCK.ACQUIRE", key, owner, "PX", 600_000, "BLOCK", 0)
        return client

    def open(self):
        self.browser.complaints()
        self.browser.open(f"http://127.0.0.1:{self.server.http_port}/")
        self.turn()

    def turn(self, turns=1):
        """Until the page has read everything so many times."""
        now = int(self.browser.run("return document.body.dataset.turns || 0"))
        script = f"Number(document.body.dataset.turns || 0) >= {now + turns}"
        self.browser.wait_for("the page to read", script)

    def see(self, what, script, *arguments):
        return self.browser.wait_for(what, script, *arguments)

    def test_the_stuck_lock_is_found_shown_and_broken(self):
        self.hold("invoices:2041", "billing-7")
        for number in range(300):
            self.hold_many(number)
        first = self.wait("invoices:2041", "billing-8")
        self.wait("invoices:2041", "billing-9")
        time.sleep(1.1)
        begun = time.monotonic()
        self.open()
        steps = []

        def step(what):
            steps.append(f"{what}: {time.monotonic() - begun:.1f} s")

        self.see("the alarm", "document.querySelector('#alarms button')?.textContent === 'invoices:2041'")
        step("the stuck lock is at the top of the page")
        self.browser.picture("stuck")
        self.browser.click("#alarms button")
        self.see("the holder", "document.querySelector('#detail .holder')?.textContent.startsWith('Held by billing-7')")
        queue = self.see("the queue", "[...document.querySelectorAll('#detail .queue li')].map(e => e.textContent)")
        self.assertEqual([line.split(",")[0] for line in queue], ["billing-8", "billing-9"])
        step("who holds it and who waits is shown")
        self.browser.picture("detail")
        self.browser.click("#detail .command button")
        command = self.see("the copy", "shown.copied")
        step("the command is copied")
        words = shlex.split(command)
        self.assertEqual(words[:5], ["redis-cli", "-p", str(self.server.port), "LOCK.BREAK", "invoices:2041"])
        operator = self.client("operator")
        self.assertEqual(operator.call(*words[3:]), 1)
        self.assertGreater(first.reply()[0], 0)
        self.see("the next holder", "document.querySelector('#detail .holder').textContent.startsWith('Held by billing-8')")
        self.see("that it was lost", "document.querySelector('#alarms').textContent.includes('LOCK.BREAK')")
        step("the next one has it")
        print("\n  " + "\n  ".join(steps))
        self.assertEqual(self.browser.complaints(), [])

    def hold_many(self, number):
        if not hasattr(self, "crowd"):
            self.crowd = self.client("crowd")
        self.crowd.call("LOCK.ACQUIRE", f"order:{number:05}", f"worker-{number}", "PX", 600_000 + number)

    def test_a_circle_is_told_and_drawn(self):
        one, two = self.hold("a", "one"), self.hold("b", "two")
        self.wait("b", "one", one)
        self.wait("a", "two", two)
        self.wait("a", "three")
        self.open()
        self.see("the circle", "document.querySelector('#alarms').textContent.includes('one → two → one')")
        self.see("its picture", "document.querySelectorAll('#picture path.circle').length === 2")
        self.assertEqual(len(self.browser.run("return [...document.querySelectorAll('#waiting-rows tr')].map(e => e.textContent)")), 3)
        for scheme in ("light", "dark"):
            self.browser.resize(1200, 900, scheme)
            colours = self.browser.run("return ['#picture path.circle', '#picture marker.circle path'].map(e => getComputedStyle(document.querySelector(e))).map((e, i) => i ? e.fill : e.stroke)")
            self.assertEqual(colours[0], colours[1], "the arrow has the line's colour")
            self.browser.run("document.querySelector('#graph').scrollIntoView()")
            self.browser.picture("circle" if scheme == "light" else "circle-dark")
        self.assertEqual(self.browser.complaints(), [])

    def test_what_stands_out_is_told_whatever_list_is_shown(self):
        for number in range(50):
            self.hold_many(number)
            self.crowd.call("LOCK.RELEASE", f"order:{number:05}", f"worker-{number}")
        for number in range(200):
            self.hold_many(number)
        gone = self.hold("reports", "went-away", "SESSION", "GRACE", 60_000, ms=60_000)
        self.clients.remove(gone)
        gone.close()
        self.hold("lost", "loser", ms=100)
        self.client("producer").call("ZADD", "jobs", int(time.time() * 1000) - 5000, "a", int(time.time() * 1000) + 600_000, "b")
        self.client("operator").call("CONFIG", "SET", "page-keys", "jobs")
        time.sleep(0.5)
        self.open()
        self.see("who is gone", "document.querySelector('#alarms').textContent.includes('is held by went-away, whose connection is gone')")
        self.see("who has lost", "document.querySelector('#alarms').textContent.includes('ago by loser: its lease ended')")
        self.see("the overdue", "document.querySelector('#queue-rows td[data-label=Overdue]')?.textContent === '1'")
        self.browser.click("#wanted")
        self.browser.press("nosuch")
        self.see("no lock", "document.querySelectorAll('#lock-rows tr').length === 0")
        self.see("the one gone still", "document.querySelector('#alarms').textContent.includes('went-away')")
        self.see("long holds", "document.querySelector('#alarms').textContent.includes('Held for much longer than usual')")
        self.assertEqual(self.browser.complaints(), [])

    def test_names_are_text_whatever_they_are(self):
        name = "<img src=x onerror=document.title='bad'>\"'\\"
        self.hold(name, "<b>owner</b>")
        self.hold(b"\xff\x00bytes", "binary")
        self.open()
        self.see("both", "document.querySelectorAll('#lock-rows tr').length === 2")
        names = self.browser.run("return [...document.querySelectorAll('#lock-rows button')].map(e => e.textContent)")
        self.assertIn(name, names)
        self.assertEqual(self.browser.run("return document.querySelectorAll('#lock-rows img, #lock-rows b').length"), 0)
        self.browser.click("#lock-rows tr:last-child button")
        self.see("the one of bytes", "document.querySelector('#detail .holder')?.textContent.includes('binary')")
        self.assertNotIn("bad", self.browser.run("return document.title"))

    def test_the_history_of_a_lock_is_told(self):
        holder = self.client("worker")
        for number in range(20):
            holder.call("LOCK.ACQUIRE", "nightly", f"worker-{number}", "PX", 60_000)
            holder.call("LOCK.RELEASE", "nightly", f"worker-{number}")
        holder.call("LOCK.ACQUIRE", "nightly", "deleted-one", "PX", 60_000)
        holder.call("DEL", "nightly")
        holder.call("LOCK.ACQUIRE", "nightly", "last-one", "PX", 60_000)
        self.open()
        self.see("its grants", "document.querySelector('#lock-rows td[data-label=Grants]')?.textContent === '22'")
        self.browser.click("#lock-rows button")
        events = self.see("its events", "[...document.querySelectorAll('#detail .events li')].map(e => e.textContent)")
        self.assertEqual(len(events), 10, events)
        self.assertIn("last-one got it", events[0])
        self.assertIn("deleted-one lost it as its key was deleted after", events[1])
        self.assertIn("worker-19 released it after", events[3])
        title = self.browser.text("#detail .events-title")
        self.assertTrue(title.startswith("22 grants, half of the last held for at most "), title)
        self.browser.picture("history")
        self.assertEqual(self.browser.complaints(), [])

    def test_what_comes_and_goes_is_told(self):
        worker = self.client("worker")
        worker.call("CONFIG", "SET", "page-keys", "mail")
        worker.call("RPUSH", "mail", *range(1000))
        for key in ("a", "b", "c"):
            worker.call("SET", key, "x" * 1000)
        self.open()
        self.turn()
        rates = "[...document.querySelectorAll('#queue-rows td')].filter(e => ['In/s', 'Out/s'].includes(e.dataset.label)).map(e => e.textContent)"
        for _ in range(40):
            worker.call("RPUSH", "mail", *range(10))
            worker.call("LPOP", "mail", 5)
            time.sleep(0.05)
        arrived, left = self.see("rates", f"(all => all.every(text => Number(text) > 0) && all)({rates})")
        self.assertGreater(float(arrived), float(left))
        types = self.browser.text("#types")
        self.assertIn("list", types)
        self.assertIn("3 keys", types)
        self.assertIn("commands", self.browser.text("#network"))
        self.assertTrue(self.browser.run("return document.querySelector('#cluster').hidden"))
        self.browser.run("document.querySelector('#queues').scrollIntoView()")
        self.browser.picture("rates")
        self.assertEqual(self.browser.complaints(), [])

    def test_a_node_tells_of_its_cluster(self):
        nodes = [Server("--cluster-enabled", "yes", "--cluster-node-timeout", "1000") for _ in range(3)]
        self.addCleanup(lambda: [node.close() for node in nodes if node.process.poll() is None])
        clients = [node.client() for node in nodes]
        clients[0].call("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        clients[1].call("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        for number, client in enumerate(clients):
            client.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, client in zip(nodes[1:], clients[1:]):
            client.call("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].cluster_port)
        deadline = time.monotonic() + 30
        while not all(b"cluster_state:ok" in client.call("CLUSTER", "INFO") for client in clients):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.1)
        clients[2].call("CLUSTER", "REPLICATE", clients[0].call("CLUSTER", "MYID"))
        self.browser.complaints()
        self.browser.open(f"http://127.0.0.1:{nodes[0].http_port}/")
        rows = "[...document.querySelectorAll('#node-rows tr')].map(e => [...e.children].map(c => c.textContent))"
        told = self.see("the nodes", f"(all => all.length === 3 && all.some(row => row[2].startsWith('replica of')) && all)({rows})")
        self.assertTrue(any("(this one)" in row[1] and row[7] == "8,192" and row[8] == "0-8191" for row in told), told)
        self.assertTrue(all(row[3] == "ok" for row in told), told)
        self.assertIn("state ok", self.browser.text("#cluster-facts"))
        self.browser.run("document.querySelector('#cluster').scrollIntoView()")
        self.browser.picture("cluster")
        for client in clients:
            client.close()
        nodes[1].close()
        self.see("that one failed", f"{rows}.some(row => row[3] !== 'ok' && row[4] === 'disconnected')")
        self.see("that the cluster fails", "document.querySelector('#cluster-facts').textContent.includes('fail')")
        self.browser.picture("cluster-failed")

    def test_ten_thousand_locks_are_searched_and_nothing_flickers(self):
        for number in range(10_000):
            self.hold_many(number)
        self.hold("needle:in:the:hay", "somebody")
        self.open()
        self.see("a hundred", "document.querySelectorAll('#lock-rows tr').length === 100")
        self.assertIn("10,001 locks are held", self.browser.text("#lock-count"))
        self.browser.click("#more")
        self.see("the next hundred", "document.querySelector('#lock-rows button')?.textContent === 'order:00100'")
        self.browser.click("#first")
        begun = time.monotonic()
        self.browser.click("#wanted")
        self.browser.press("needle")
        self.see("the needle", "document.querySelectorAll('#lock-rows tr').length === 1")
        print(f"\n  one of 10,001 locks found by its name after {time.monotonic() - begun:.1f} s")
        self.browser.press("\ue003" * 6 + "order:0")
        self.see("the others", "document.querySelectorAll('#lock-rows tr').length === 100")
        self.browser.run(
            "window.row = document.querySelector('#lock-rows tr'); row.querySelector('button').focus();"
            "window.changes = 0; new MutationObserver(all => changes += all.length).observe(document.querySelector('#lock-rows'), {childList: true})"
        )
        self.turn(3)
        self.assertTrue(self.browser.run("return row.isConnected && document.activeElement === row.querySelector('button')"))
        self.assertEqual(self.browser.run("return changes"), 0, "rows that stay are not made anew")
        self.browser.picture("many")

    def test_it_is_used_by_the_keyboard_and_read_aloud(self):
        self.hold("lock", "me")
        self.open()
        self.see("the lock", "document.querySelector('#lock-rows button')")
        self.browser.run("document.querySelector('#sort').focus()")
        self.browser.press(TAB)
        self.assertEqual(self.browser.run("return document.activeElement.textContent"), "lock")
        self.browser.press(ENTER)
        self.see("the detail, with the focus", "!document.querySelector('#detail').hidden && document.activeElement.id === 'detail'")
        self.browser.press(ESCAPE)
        self.see("its end", "document.querySelector('#detail').hidden")
        names = self.browser.run("return [...document.querySelectorAll('section')].map(e => document.getElementById(e.getAttribute('aria-labelledby')).textContent)")
        self.assertEqual(names, ["Stuck now", "The last ten minutes", "Locks", "Semaphores", "Who waits for whom", "Queues", "Keys", "Commands", "Cluster", "Server"])
        tree = self.browser.devtools("Accessibility.getFullAXTree", {})["nodes"]
        for node in tree:
            if node.get("role", {}).get("value") in ("button", "textbox", "searchbox", "combobox", "link"):
                self.assertTrue(node["name"]["value"], node)

    def test_a_group_that_nobody_reads_is_told_with_commands_to_copy(self):
        client = self.client("producer")
        client.call("XGROUP", "CREATE", "jobs", "workers", "$", "MKSTREAM")
        client.call("XADD", "jobs", "*", "a", "b")
        self.open()
        self.see("the warning", "document.querySelector('#queue-alarms li')?.textContent === 'jobs: group workers: 1 entries, and nobody reads'")
        self.browser.run("document.querySelector('#queue-rows summary').click()")
        self.see("the command", "document.querySelector('#queue-rows details').textContent.includes('XGROUP CREATECONSUMER jobs workers :paused')")
        client.call("XGROUP", "CREATECONSUMER", "jobs", "workers", ":paused")
        self.see("the pause", "document.querySelector('#queue-alarms li').textContent === 'jobs: group workers is paused'")
        client.call("DEL", "jobs")
        self.see("its end", "!document.querySelector('#queue-alarms li')")

    def test_the_hot_key_and_the_largest_keys_are_found(self):
        client = self.client("shop")
        client.call("SETRANGE", "large", 2_000_000, "x")
        for number in range(500):
            client.call("XADD", "events", "*", "payload", "y" * 10_000)
            client.call("SET", f"small:{number}", number)
        begun = time.monotonic()
        self.open()
        largest = self.see("the largest", "(all => all.length > 5 && all)([...document.querySelectorAll('#largest-rows tr')].map(e => e.textContent))")
        self.assertTrue(largest[0].startswith("eventsstream"), largest[0])
        self.assertTrue(largest[1].startswith("largestring"), largest[1])
        self.see("a complete count", "document.querySelector('#walk').textContent.startsWith('Counted over all keys')")
        # A page that was open before may have begun a walk while keys were added.
        self.see("all keys", "document.querySelector('#types').textContent.includes('501 keys')")
        self.see("the command", "document.querySelector('#hot-start code')")
        self.browser.run("document.querySelector('#hot-start button').click()")
        words = shlex.split(self.see("the copy", "shown.copied"))
        self.assertEqual(words[:4], ["redis-cli", "-p", str(self.server.port), "HOTKEYS"])
        self.assertEqual(client.call(*words[3:]), "OK")
        for _ in range(2000):
            client.call("INCR", "hot")
        client.call("GET", "large")
        hot = self.see("the hot key", "(all => all.length > 1 && all)([...document.querySelectorAll('#hot-rows tr')].map(e => [...e.children].map(c => c.textContent)))")
        self.assertEqual(hot[0][0], "hot", hot)
        self.assertIn("goes on", self.browser.text("#hot-state"))
        print(f"\n  the largest keys and the hot one after {time.monotonic() - begun:.1f} s")
        self.browser.run("document.querySelector('#keys').scrollIntoView()")
        self.browser.picture("keys")
        self.assertEqual(self.browser.complaints(), [])

    def test_ten_minutes_are_drawn_and_read_as_text(self):
        client = self.client("worker")
        end = time.monotonic() + 4
        while time.monotonic() < end:
            client.call("SET", "k", "v")
        self.open()
        self.turn(2)
        captions = self.browser.run("return [...document.querySelectorAll('#figures figure')].filter(e => !e.hidden).map(e => e.querySelector('figcaption').textContent)")
        self.assertEqual([text.split(":")[0] for text in captions], ["Commands a second", "Longest turn of the loop", "Memory", "Waits for locks and permits"])
        most = int(captions[0].split(" to ")[1].replace(",", ""))
        self.assertGreater(most, 100, captions)
        line = self.browser.run("return document.querySelector('#figures path').getAttribute('d')")
        self.assertGreater(line.count("L"), 1, line)
        self.browser.run("document.querySelector('#charts').scrollIntoView()")
        self.browser.picture("charts")
        self.assertEqual(self.browser.complaints(), [])

    def test_semaphores_tell_who_holds_and_who_waits(self):
        for owner in ("one", "two"):
            self.client(owner).call("SEM.ACQUIRE", "pool", owner, "LIMIT", 2, "PX", 60_000)
        self.client("three").send("SEM.ACQUIRE", "pool", "three", "LIMIT", 2, "PX", 60_000, "BLOCK", 0)
        self.open()
        row = self.see("the semaphore", "(row => row && row.children[3].textContent === '1' && [...row.children].map(e => e.textContent))(document.querySelector('#semaphore-rows tr'))")
        self.assertEqual(row[:2], ["pool", "2"])
        self.assertIn("one, ", row[2])
        self.assertTrue(row[4].startswith("three, for ") and row[4].endswith(" (three)"), row)
        self.browser.run("document.querySelector('#semaphores').scrollIntoView()")
        self.browser.picture("semaphores")
        self.assertEqual(self.browser.complaints(), [])

    def test_it_fits_a_telephone_and_the_dark(self):
        self.hold("a:" + "long-name:" * 12, "an-owner-with-quite-a-name", "SESSION", "GRACE", 5000)
        self.wait("a:" + "long-name:" * 12, "someone-else")
        self.client("consumer").send("BLPOP", "mail", 0)
        self.client("producer").call("XADD", "events", "*", "a", "b")
        self.client("holder").call("SEM.ACQUIRE", "pool:" + "x" * 200, "y" * 200, "LIMIT", 2, "PX", 60_000)
        self.client("operator").call("HOTKEYS", "START", "METRICS", 2, "CPU", "NET")
        time.sleep(1.1)
        self.open()
        for width, scheme in [(360, "light"), (360, "dark"), (1200, "dark")]:
            self.browser.resize(width, 800, scheme)
            self.turn()
            self.assertLessEqual(self.browser.run("return document.scrollingElement.scrollWidth"), width)
            self.browser.picture(f"{width}-{scheme}")
        tops = self.browser.run("return ['#wanted', '#sort'].map(e => document.querySelector(e).parentElement.getBoundingClientRect().top)")
        self.assertEqual(tops[0], tops[1], "the labels stand on one line")
        back = self.browser.run("return getComputedStyle(document.body).backgroundColor")
        self.assertEqual(back, "rgb(18, 22, 27)")
        queue = self.browser.run("return document.querySelector('#queue-rows tr').textContent")
        self.assertTrue(queue.startswith("mail"), queue)


if __name__ == "__main__":
    unittest.main()
