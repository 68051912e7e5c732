#!/usr/bin/env python3
"""The programs on the pages of docs/commands, by language: `pages.py write LANGUAGE FOLDER` writes them, each below its page's name;
`pages.py check LANGUAGE COMMAND ...` runs COMMAND with each page's name, and compares the output with what the page says.

A page says it in the first sentence of its last section: "... prints `a`, `b` and `c`." The port 6379 becomes PORT's.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
PAGES = os.path.join(ROOT, "docs", "commands")
FILES = {"python": "{}.py", "js": "{}.mjs", "go": "{}/main.go", "java": "{}/Example.java", "rust": "{}.rs"}


def pages():
    for name in sorted(os.listdir(PAGES)):
        with open(os.path.join(PAGES, name)) as file:
            section = file.read().split("\n## In five languages\n")[1]
        said = re.search(r"prints\s+(.*?)\.(\s|$)", section, re.S)[1]
        programs = dict(re.findall(r"^```(\w+)\n(.*?)^```$", section, re.S | re.M))
        yield name.removesuffix(".md"), programs, re.findall(r"`(.*?)`", said)


def write(language, folder):
    for page, programs, _ in pages():
        path = os.path.join(folder, FILES[language].format(page))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(programs[language].replace("6379", os.environ["PORT"]))


def check(command):
    failed = False
    for page, _, expected in pages():
        run = subprocess.run([*command, page], capture_output=True, text=True, timeout=60)
        lines = run.stdout.splitlines()
        print(f"{page}: {'ok' if lines == expected else 'FAILED'}")
        if lines != expected or not expected:
            failed = True
            print(f"expected {expected}\ngot {lines}\n{run.stderr}")
    return failed


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        sys.exit(check(sys.argv[2:]))
