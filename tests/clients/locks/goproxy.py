#!/usr/bin/env python3
"""goproxy.py MODULE-FOLDER OUT: the module as a proxy of files has it, in version 0.2.0."""

import os
import sys
import zipfile

folder, out = sys.argv[1:]
with open(os.path.join(folder, "go.mod")) as file:
    mod = file.read()
path, version = mod.split()[1], "v0.2.0"
place = os.path.join(out, path, "@v")
os.makedirs(place, exist_ok=True)
for name, text in {"list": version, f"{version}.info": f'{{"Version":"{version}"}}', f"{version}.mod": mod}.items():
    with open(os.path.join(place, name), "w") as file:
        file.write(text)
with zipfile.ZipFile(os.path.join(place, f"{version}.zip"), "w") as archive:
    for name in sorted(os.listdir(folder)):
        archive.write(os.path.join(folder, name), f"{path}@{version}/{name}")
