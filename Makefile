# Every target is described by `make help`. CARGO_TARGET_DIR and PEERS are honoured.

CARGO ?= cargo
# The allocator's makefile compiles each file twice. Only the library of position-independent code is linked: the other one stays empty.
PIC_ONLY := MAKEFLAGS=C_OBJS=
PREFIX ?= /usr/local
# A first peer is found in PATH, or named: PEERS="redis-server=/path/redis-server valkey-server=/path/valkey-server".
PEERS ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)

.DEFAULT_GOAL := build
.PHONY: build quick help run check deny test bench bench-peers bench-locks bench-queues bench-cluster bench-guard peer peer-redis8 peer-valkey public-scripts clients cluster mixed-cluster crash arm64 crossings random failover locks sentinel simulate linearizable upgrade fuzz miri doc install uninstall page dist dist-check recipes tag-check release image image-static package-test package-tools

build: ## build the server, optimised
	$(PIC_ONLY) $(CARGO) build --release

quick: ## build the server of `make run` and `make bench-guard`: soon rather than as fast as a release
	$(PIC_ONLY) $(CARGO) build --profile quick

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: ## build and start the server, with the profile of `make quick`; ARGS="--port 7777" adds to its command line
	$(PIC_ONLY) $(CARGO) run --profile quick -- $(ARGS)

check: ## formatting, lints of all targets, the architecture's rules, the checker of `make locks`, and a part of `make miri` where Miri is installed
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path benches/micro/Cargo.toml
	$(CARGO) fmt --check --manifest-path benches/peers/Cargo.toml
	$(PIC_ONLY) $(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --all-targets --manifest-path benches/micro/Cargo.toml --target-dir $(TARGET) -- -D warnings
	$(CARGO) test --quiet --test tidy
	tests/locks/run --self-test
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
	  $(MIRI) test --lib -- $(MIRI_SMALL); \
	else echo "SKIPPED Miri: no nightly toolchain with miri is installed"; fi

deny: ## known vulnerabilities, licences and doubles of dependencies, by cargo-deny, which it installs if need be (network)
	@$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deny
	$(CARGO) deny --locked check

test: ## all tests that need nothing but the toolchain
	$(PIC_ONLY) $(CARGO) test

bench: ## criterion benches of the parts
	$(CARGO) bench --manifest-path benches/micro/Cargo.toml --target-dir $(TARGET)/micro

bench-peers: build ## CPU per operation, latency and memory beside Redis and Valkey; writes docs/benchmarks.md
	$(CARGO) build --release --manifest-path benches/peers/Cargo.toml --target-dir $(TARGET)/peers
	PEERS="$(PEERS)" $(TARGET)/peers/release/bench-peers --latchkey $(TARGET)/release/latchkey --out docs $(ARGS)

bench-locks: build ## hand-over, memory and leases of locks beside Redisson, redis-py and BLPOP; writes docs/benchmarks.md
	$(CARGO) build --release --manifest-path benches/peers/Cargo.toml --target-dir $(TARGET)/peers
	PEERS="$(PEERS)" benches/locks/run $(TARGET)/peers/release/bench-peers $(TARGET)/release/latchkey --out docs $(ARGS)

bench-queues: build ## CPU a job beside BullMQ, asynq and Sidekiq's commands, of limits beside scripts, and alarms among millions; ARGS="--only alarms --scale 10"
	PEERS="$(PEERS)" benches/queues/run $(TARGET)/release/latchkey $(ARGS)

bench-cluster: build ## memory and CPU of a cluster, its gaps and moves of slots, beside Redis and Valkey
	PEERS="$(PEERS)" benches/cluster/run $(TARGET)/release/latchkey $(ARGS)

bench-guard: quick ## instructions of fourteen paths, at most 3% above the committed ones (needs valgrind); ARGS="--only GET" measures one, "--write" records
	benches/guard/run $(TARGET)/quick/latchkey $(ARGS)

peer: ## transcripts, random commands, and Redis's own test suite, beside the real Redis; ARGS="unit/expire" runs files of the suite
	tests/peer/run $(ARGS)

peer-valkey: ## Valkey's own test suite with compatible-with valkey-9; ARGS="unit/expire" runs files of it, PEERS may name its server
	PEERS="$(PEERS)" tests/peer/run --valkey $(ARGS)

peer-redis8: ## transcripts beside a real Redis 8.6.3, then its own test suite with compatible-with redis-8; PEERS may name its server
	PEERS="$(PEERS)" tests/peer/run --redis8 $(ARGS)

clients: ## real clients in their languages against this server; ARGS="redis-py jedis" names some
	tests/clients/run $(ARGS)

page: ## the page in a real browser: a stuck lock is found and broken (needs python3, chromium and chromedriver); PICTURES=DIR keeps screenshots
	tests/page/run $(ARGS)

crash: build ## kills a server under load for a minute and looks for answered writes; ARGS="--seconds 600 --binary PATH"
	tests/crash/run --binary $(TARGET)/release/latchkey $(ARGS)

arm64: ## unit tests and transcripts as a program of arm64, under qemu-user (needs a cross compiler); ARGS="--it locks::" runs others
	tests/arm64/run $(ARGS)

failover: build ## three nodes, three redis-sentinels, 20 failovers under load; ARGS="--rounds 4 --kinds kill,partition --clients redis-py,jedis", "--jobs --cluster"
	tests/failover/run --binary $(TARGET)/release/latchkey $(ARGS)

linearizable: ## registers, locks, semaphores, queues and streams under kills, partitions and failovers, judged by porcupine (needs go); ARGS="-plants", "-only lock,kills -rounds 50"
	$(CARGO) build
	cd tests/linearizable && go run . -server $(abspath $(TARGET))/debug/latchkey $(ARGS)

upgrade: ## earlier versions, built from their commits, and this one take turns in a folder, and follow each other
	tests/upgrade/run

locks: build ## locks under kills, pauses, clock steps, restarts and failovers; ARGS="--only L1,L5 --seconds 60 --seed 7", "--list"
	tests/locks/run --binary $(TARGET)/release/latchkey $(ARGS)

sentinel: ## the sentinel tests of Redis's suite, real sentinels over this server's nodes; REDIS_SOURCE and SENTINEL may name others
	$(CARGO) build
	tests/peer/sentinel $(TARGET)/debug/latchkey $(ARGS)

public-scripts: ## scripts of public queue, lock and limiter libraries beside Redis (REDIS names another); ARGS="--seed 7 --calls 100"
	$(CARGO) build
	LATCHKEY=$(TARGET)/debug/latchkey tests/peer/public-scripts $(ARGS)

crossings: ## random requests from the whole grammar; all that keeps the data agrees; ARGS="--seed 7" repeats one, "--seeds 1000 --from 1" runs many
	CROSSINGS="$(ARGS)" $(CARGO) test --test it crossings:: -- --ignored --nocapture

cluster: ## the cluster tests of Redis's suite over 20 nodes of this server; REDIS_SOURCE may name its source, ARGS="failover" units
	$(CARGO) build
	tests/peer/cluster $(TARGET)/debug/latchkey $(ARGS)

mixed-cluster: ## three nodes of a peer (PEERS names its server, or redis-server is in PATH) beside three of this one; ARGS="compatible-with redis-8"
	$(CARGO) build
	tests/peer/mixed-cluster $(TARGET)/debug/latchkey $(or $(lastword $(subst =, ,$(firstword $(PEERS)))),$(shell command -v redis-server)) $(ARGS)

# Any 64-bit number; what a run printed repeats it.
DRAWN := $(shell od -An -N6 -tu8 /dev/urandom | tr -d ' ')
random: ## the random tests with seeds drawn anew, and more of each; TEST_SEED=7 repeats one
	CARGO_PROFILE_DEV_OPT_LEVEL=1 TEST_SEED=$(or $(TEST_SEED),$(DRAWN)) PROPTEST_RNG_SEED=$(or $(TEST_SEED),$(DRAWN)) \
	  PROPTEST_CASES=2000 EFFECTS_COMMANDS=1000000 STREAMS_COMMANDS=200000 UNITS_RUNS=1000 $(CARGO) test

simulate: ## servers under random misfortune, minutes of seeds; ARGS="--seed 7" repeats one, "--seeds 1000 --from 1" runs many, "--alone" one server
	CARGO_PROFILE_DEV_OPT_LEVEL=1 SIMULATE="$(ARGS)" $(CARGO) test --test it simulation::many_seeds -- --ignored --nocapture

# Luau's objects hold the compiler's constants under equal names, which AddressSanitizer would take for a fault.
fuzz: ## each fuzz target for a minute (needs cargo-fuzz and a nightly toolchain)
	cd fuzz && for target in $$(cargo +nightly fuzz list); do \
	  ASAN_OPTIONS=detect_odr_violation=0 cargo +nightly fuzz run $$target -- -max_total_time=60 || exit 1; done

# Tests of these that take seconds there: the table's entries, blocks and segments, which hold the unsafe code.
# Property tests look for the folder they run in.
MIRI := MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri
MIRI_SMALL := collections::table::bucket $(addprefix collections::table::tests::,an_empty entries_are)

miri: ## the structures that hold unsafe code, under Miri (needs a nightly toolchain with miri)
	$(MIRI) test --lib collections::

doc: ## the crate's documentation
	$(CARGO) doc --no-deps --document-private-items

# Where files go: DESTDIR is put before all of them, for packages. A BINARY that is named is installed as it is.
SYSCONFDIR ?= /etc
BINARY ?= $(TARGET)/release/latchkey
BUILT = $(if $(filter file,$(origin BINARY)),build)
SHARE = $(DESTDIR)$(PREFIX)/share
FILL_IN = sed -e 's|@BINDIR@|$(PREFIX)/bin|; s|@SYSCONFDIR@|$(SYSCONFDIR)|'
LINKS = redis-server redis-check-rdb redis-check-aof
# What the program contains, with the licences' texts: a file that is there, as in a release's source, or made from the crates.
NOTICES ?= $(wildcard THIRD-PARTY.txt)
ZSH_FUNCTIONS ?= $(PREFIX)/share/zsh/site-functions
INSTALLED = $(DESTDIR)$(PREFIX)/bin/latchkey $(SHARE)/man/man1/latchkey.1 $(SHARE)/man/man5/latchkey.conf.5 $(SHARE)/doc/latchkey \
  $(SHARE)/bash-completion/completions/latchkey $(DESTDIR)$(ZSH_FUNCTIONS)/_latchkey $(SHARE)/fish/vendor_completions.d/latchkey.fish \
  $(DESTDIR)$(PREFIX)/lib/systemd/system/latchkey.service $(DESTDIR)$(PREFIX)/lib/sysusers.d/latchkey.conf \
  $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/latchkey.conf $(DESTDIR)$(SYSCONFDIR)/logrotate.d/latchkey

install: $(BUILT) ## install to PREFIX: program, manual, licences, completions, systemd, logrotate, a first configuration; REDIS_SERVER=yes links Redis's names
	install -Dm755 $(BINARY) $(DESTDIR)$(PREFIX)/bin/latchkey
	if [ "$(REDIS_SERVER)" = yes ]; then for name in $(LINKS); do \
	  ln -sf latchkey $(DESTDIR)$(PREFIX)/bin/$$name || exit 1; done; fi
	install -Dm644 man/latchkey.1 -t $(SHARE)/man/man1
	install -Dm644 man/latchkey.conf.5 -t $(SHARE)/man/man5
	install -Dm644 packaging/completions/latchkey.bash $(SHARE)/bash-completion/completions/latchkey
	install -Dm644 packaging/completions/latchkey.zsh $(DESTDIR)$(ZSH_FUNCTIONS)/_latchkey
	install -Dm644 packaging/completions/latchkey.fish -t $(SHARE)/fish/vendor_completions.d
	install -Dm644 README.md CHANGELOG.md LICENSE redis.conf.example SUPPORT.md docs/*.md docs/*.svg docs/*.json -t $(SHARE)/doc/latchkey
	install -Dm644 docs/commands/*.md -t $(SHARE)/doc/latchkey/commands
	install -Dm644 packaging/prometheus/*.yml packaging/grafana/latchkey.json -t $(SHARE)/doc/latchkey
	if [ -n "$(NOTICES)" ]; then install -m644 $(NOTICES) $(SHARE)/doc/latchkey/THIRD-PARTY.txt; else \
	  CARGO="$(CARGO)" packaging/notices "$$(rustc -vV | sed -n 's/^host: //p')" >$(SHARE)/doc/latchkey/THIRD-PARTY.txt; fi
	install -d $(addprefix $(DESTDIR)$(PREFIX)/lib/,systemd/system tmpfiles.d)
	$(FILL_IN) packaging/latchkey.service.in >$(DESTDIR)$(PREFIX)/lib/systemd/system/latchkey.service
	$(FILL_IN) packaging/latchkey.tmpfiles.in >$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/latchkey.conf
	install -Dm644 packaging/latchkey.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/latchkey.conf
	install -Dm644 packaging/latchkey.logrotate $(DESTDIR)$(SYSCONFDIR)/logrotate.d/latchkey
	[ -e $(DESTDIR)$(SYSCONFDIR)/latchkey/latchkey.conf ] || \
	  install -Dm640 packaging/latchkey.conf $(DESTDIR)$(SYSCONFDIR)/latchkey/latchkey.conf

uninstall: ## remove the files of `make install`, except the configuration and the data
	rm -rf $(INSTALLED)
	for name in $(LINKS); do link=$(DESTDIR)$(PREFIX)/bin/$$name; \
	  [ "$$(readlink $$link)" != latchkey ] || rm $$link; done

TAG ?=
# yes: a build that stays on this machine, though packaging/publisher does not say who publishes it.
UNPUBLISHED ?=
# yes: `make dist` fails where no static program can be built; no: it builds none.
STATIC ?=
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p; /^\[lib\]/q' Cargo.toml)

dist: ## the files of a release, in target/dist/out: programs, symbols, Debian packages, bills of materials, checksums; the same each time
	CARGO="$(CARGO)" TAG="$(TAG)" STATIC="$(STATIC)" UNPUBLISHED="$(UNPUBLISHED)" packaging/dist $(ARGS)

dist-check: ## builds the committed source twice, in two folders, and compares the files of `make dist` (two release builds)
	packaging/dist-check $(ARGS)

release: ## publishes FILES (a folder made by `make dist`) as the release TAG on GitHub (needs gh)
	TAG="$(TAG)" packaging/published check
	gh release create "$(TAG)" $(FILES)/* --verify-tag --title "Latchkey $(VERSION)" --notes "See CHANGELOG.md."

tag-check: ## whether packaging/publisher says who publishes, and the tag TAG is signed with that key (needs gpg)
	TAG="$(TAG)" packaging/published tag "$(TAG)"

recipes: ## fills in the recipes of package managers for the release in FILES, into OUT; packaging/publisher, or URL, says where releases are
	URL="$(URL)" UNPUBLISHED="$(UNPUBLISHED)" packaging/recipes/fill-in $(abspath $(FILES)) $(abspath $(OUT))

image: ## the container's image, latchkey:VERSION (needs docker)
	docker build --tag latchkey:$(VERSION) .

image-static: ## an image of the static program alone, latchkey:VERSION-static (needs docker)
	docker build --file packaging/Dockerfile.static --tag latchkey:$(VERSION)-static .

package-test: ## the package and the image's steps in clean systems: installed, started, removed (root and mmdebstrap or debootstrap, else skipped)
	packaging/test $(ARGS)

package-tools: ## installs the tools of package-test, on Debian and Ubuntu (root)
	apt-get -qq update
	DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends mmdebstrap debian-archive-keyring dpkg-dev iproute2
