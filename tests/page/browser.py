"""A browser without a window, driven by chromedriver's protocol, which is JSON over HTTP."""

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    def __init__(self, width=1200, height=900):
        # Port 0: it chooses one, and says which.
        self.driver = subprocess.Popen(
            [shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, text=True
        )
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.address = "http://127.0.0.1:" + line.rsplit(" ", 1)[1].strip().rstrip(".")
                break
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options = {
            "args": arguments + [f"--window-size={width},{height}"],
            "binary": shutil.which("chromium"),
        }
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        wanted = {"capabilities": {"alwaysMatch": capabilities}}
        self.path = ""
        self.path = "/session/" + self.call("POST", "/session", wanted)["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + self.path + path, data, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, address):
        self.call("POST", "/url", {"url": address})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector):
        return self.call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"/element/{self.find(selector)}/click", {})

    def press(self, keys):
        pressed = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": pressed}]})

    def text(self, selector):
        return self.call("GET", f"/element/{self.find(selector)}/text")

    def wait_for(self, what, script, *arguments, seconds=20):
        """Until the script returns something true, which is the result."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.run("return " + script, *arguments)
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"waited too long for {what}")
            time.sleep(0.05)

    def resize(self, width, height, scheme="light"):
        """As on a device of this size, and its preference for light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def devtools(self, command, parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self):
        """What the page has logged: errors, and what its policy has refused."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def picture(self, name):
        """A picture of what is seen, if PICTURES names a folder."""
        if folder := os.environ.get("PICTURES"):
            with open(os.path.join(folder, name + ".png"), "wb") as file:
                file.write(base64.b64decode(self.call("GET", "/screenshot")))

    def close(self):
        self.call("DELETE", "")
        self.driver.terminate()
        self.driver.wait(10)
        self.driver.stdout.close()
