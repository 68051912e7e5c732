"""What the program consists of, from `cargo metadata`: for `packaging/sbom` and `packaging/notices`."""

import json
import os
import subprocess

# Sources of others that come within a crate and are linked in: name, licence, repository.
WITHIN = {
    "tikv-jemalloc-sys": ("jemalloc", "BSD-2-Clause", "https://github.com/jemalloc/jemalloc"),
    "luau0-src": ("Luau", "MIT", "https://github.com/luau-lang/luau"),
    "ring": ("BoringSSL and others, parts of", "Apache-2.0 AND ISC", "https://github.com/briansmith/ring"),
}


def metadata(targets):
    """Of one target, or of several with commas between them."""
    platforms = [word for target in targets.split(",") for word in ("--filter-platform", target)]
    return json.loads(subprocess.check_output(
        [os.environ.get("CARGO") or "cargo", "metadata", "--locked", "--format-version", "1", *platforms]))


def expression(package):
    # Older crates have a slash for OR.
    return " ".join((package["license"] or "").replace("/", " OR ").split())


def walk(metadata):
    """The packages by id, the root's id, and for each package that is needed what it needs and its scope: `required` if it is linked
    in, `excluded` if only the build runs it. Without development dependencies."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    needed, kinds, ahead = {}, {}, [(root, "required")]
    while ahead:
        here, scope = ahead.pop()
        # What only the build runs is no part of the program: build scripts, macros and what they need.
        if any("proc-macro" in built["kind"] for built in packages[here]["targets"]):
            scope = "excluded"
        if kinds.get(here) in ("required", scope):
            continue
        kinds[here] = scope
        needed[here] = set()
        for dependency in nodes[here]["deps"]:
            ways = {way["kind"] for way in dependency["dep_kinds"]} - {"dev"}
            if ways:
                needed[here].add(dependency["pkg"])
                ahead.append((dependency["pkg"], scope if None in ways else "excluded"))
    scopes = {id: "required" if packages[id]["name"] in WITHIN else kinds[id] for id in kinds}
    return packages, root, needed, scopes
