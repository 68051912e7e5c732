// The table of cases by latchkey-locks for Node: each case over each kind of client, of ioredis and of node-redis.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Cluster, Redis } from "ioredis";
import { createClient } from "redis";
import { LockLostError, Locks, NotGrantedError } from "latchkey-locks";

const { PORT, RELAY, CLUSTER, SENTINEL } = process.env;
const host = "127.0.0.1";

async function clientOf(over, library, protocol) {
  const port = Number(over === "relay" ? RELAY : PORT);
  let client;
  if (library === "node-redis") {
    client = createClient({ socket: { host, port }, RESP: protocol, commandOptions: over === "impatient" ? { timeout: 200 } : {} });
    client.on("error", () => {});
    await client.connect();
    return client;
  }
  if (over === "cluster") client = new Cluster([{ host, port: Number(CLUSTER.split(" ")[0]) }], { redisOptions: { protocol } });
  else if (over === "sentinel") client = new Redis({ sentinels: [{ host, port: Number(SENTINEL) }], name: "primary", protocol });
  else client = new Redis({ host, port, protocol, ...(over === "impatient" ? { commandTimeout: 200 } : {}) });
  client.on("error", () => {});
  return client;
}

class Own extends Error {}

async function until(condition) {
  for (const end = Date.now() + 20_000; !(await condition()); await sleep(5)) assert.ok(Date.now() < end, "waited in vain");
}

class Case {
  grants = {};
  begun = {};
  signals = {};
  aborts = {};

  constructor(tag, client) {
    Object.assign(this, { tag: `{${tag}}`, client, locks: new Locks(client) });
  }

  raw(words) {
    return this.client.call ? this.client.call(...words) : this.client.sendCommand(words);
  }

  async run(step) {
    const told = JSON.stringify(step);
    let result, error;
    try {
      result = await this[step.do](step);
    } catch (failed) {
      if (failed instanceof assert.AssertionError) throw failed;
      result = failed;
      error = failed instanceof NotGrantedError ? "not granted" : failed instanceof LockLostError ? "lost" : failed instanceof Own ? "own" : failed.name === "AbortError" ? "cancelled" : "server";
      if (error === "server" && !/^[A-Z]+ /.test(failed.message)) error = failed.stack;
    }
    assert.equal(error, step.error, told);
    if ("holder" in step) assert.equal(result.holder, step.holder && this.grants[step.holder].owner, told);
    if (step.besides) assert.ok(result.lockError instanceof LockLostError, told);
    if (step.do !== "acquire" && step.do !== "permits") return;
    if (step.above && typeof step.above === "string") assert.ok(result.fence > this.grants[step.above].fence, told);
    if (step.same) assert.equal(result.fence, this.grants[step.same].fence, told);
    if ("free" in step) assert.deepEqual([result.free, result.permits.length], [step.free, step.count ?? 1], told);
    if (!error) this.grants[step.as] = result;
  }

  options({ as, lease, wait, grace, shared, count, owner }) {
    const given = { lease, wait, grace, shared, count, owner: owner && this.grants[owner].owner, signal: this.aborts[as]?.signal };
    return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
  }
  keys(step) {
    return step.keys.map((key) => this.tag + key);
  }
  acquire(step) {
    return this.locks.acquire(this.keys(step), this.options(step));
  }
  permits(step) {
    return this.locks.permits(this.tag + step.key, step.limit, this.options(step));
  }
  begin({ step }) {
    this.aborts[step.as] = new AbortController();
    this.begun[step.as] = this.run(step);
    this.begun[step.as].catch(() => {});
  }
  cancel(step) {
    this.aborts[step.of].abort();
  }
  async end(step) {
    await Promise.race([this.begun[step.of], sleep(20_000, undefined, { ref: false }).then(() => assert.fail(`${step.of} waits`))]);
  }
  release(step) {
    return this.grants[step.of].release({ keep: step.keep });
  }
  renew(step) {
    return this.grants[step.of].renew(step.lease);
  }
  async held(step) {
    assert.equal(await this.grants[step.of].held(), step.is, JSON.stringify(step));
  }
  async attach(step) {
    assert.equal(await this.grants[step.of].attach(), step.is, JSON.stringify(step));
  }
  left(step) {
    const left = this.grants[step.of].left();
    assert.ok(left > (step.above ?? -1) && left < (step.below ?? 1e9), `${JSON.stringify(step)}: ${left}`);
  }
  async guarded(step) {
    const transaction = this.grants[step.of].guard(this.client.multi()).set(this.tag + step.key, step.value);
    const done = await transaction.exec().catch((error) => {
      if (error.constructor.name !== "WatchError") throw error;
      return null;
    });
    assert.equal(done !== null, step.is, JSON.stringify(step));
  }
  watch(step) {
    this.signals[step.of] = this.grants[step.of].watch();
  }
  async told(step) {
    const signal = this.signals[step.of];
    if (step.is) await until(() => signal.aborted);
    assert.equal(signal.aborted, step.is);
    if (step.is) assert.ok(signal.reason instanceof LockLostError);
  }
  scope(step) {
    return this.locks.withLock(this.keys(step), this.options(step), async (lock) => {
      this.grants[step.as] = lock;
      for (const one of step.inside) await this.run(one);
      if (step.raise) throw new Own();
    });
  }
  async throttle(step) {
    const { count, period, burst, quantity } = step;
    const limit = await this.locks.throttle(this.tag + step.key, { count, period, burst, quantity });
    assert.deepEqual([limit.allowed, limit.remaining], [step.allowed, step.remaining], JSON.stringify(step));
  }
  async kill() {
    const client = new Redis({ host, port: Number(PORT) });
    await client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes");
    client.disconnect();
  }
  pause(step) {
    return sleep(step.ms);
  }
  async command(step) {
    const words = step.words.map((word) => (word.startsWith("$") ? this.tag + word.slice(1) : word));
    let reply;
    const isRight = async () => {
      reply = await this.raw(words);
      if ("item" in step) reply = reply[step.item];
      if ("count" in step) reply = reply.length;
      return "above" in step ? reply > step.above : reply === (step.count ?? step.reply);
    };
    if (step.until) await until(isRight);
    else assert.ok(await isRight(), `${JSON.stringify(step)}: ${reply}`);
  }
}

let [passed, failed, skipped] = [0, 0, 0];
for (const one of JSON.parse(readFileSync(process.argv[2]))) {
  for (const over of one.over ?? ["server", "cluster", "sentinel"]) {
    for (const [library, protocol] of [["ioredis", 2], ["ioredis", 3], ["node-redis", 2], ["node-redis", 3]]) {
      if (library === "node-redis" && ["cluster", "sentinel"].includes(over)) continue;
      if (over === "sentinel" && !SENTINEL) {
        skipped++;
        continue;
      }
      const client = await clientOf(over, library, protocol);
      try {
        const running = new Case(`${one.name.slice(0, 9)}${over}${library}${process.hrtime.bigint()}`, client);
        for (const step of one.steps) await running.run(step);
        passed++;
      } catch (error) {
        failed++;
        console.log(`FAILED ${one.name}, over ${over}, ${library}, RESP${protocol}: ${error.message}`);
      }
      if (client.disconnect && client.call) client.disconnect();
      else client.destroy();
    }
  }
}
console.log(`node: ${passed} passed, ${failed} failed, ${skipped} skipped`);
// Not only its code: what a failed case has left open would keep the process.
process.exit(failed ? 1 : 0);
