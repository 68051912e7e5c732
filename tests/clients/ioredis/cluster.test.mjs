// Programs written with ioredis' Cluster: routing, pipelines, scripts, messages, locks, slots that move and primaries that die.
import assert from "node:assert/strict";
import { after, before, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Load, startCluster } from "./cluster.mjs";
import { Heard, until } from "./server.mjs";

describe("Cluster", () => {
  let cluster, redis;

  before(async () => {
    cluster = await startCluster();
    redis = cluster.connect();
    await until(() => redis.status === "ready");
  });
  beforeEach(() => Promise.all(redis.nodes("master").map((node) => node.flushall())));
  after(() => cluster.stop());

  const slotOf = (key) => cluster.node(cluster.ports[0]).cluster("KEYSLOT", key);
  const idOf = (port) => cluster.node(port).cluster("MYID");
  const isOurs = async () => (await cluster.node(cluster.ports[0]).config("GET", "redis-version")).length > 0;

  it("finds the owners of keys, and all keys", async () => {
    const names = Array.from({ length: 300 }, (_, number) => `key:${number}`);
    await Promise.all(names.map((name) => redis.set(name, name)));
    assert.deepEqual(await Promise.all(names.map((name) => redis.get(name))), names);
    const found = [];
    for (const node of redis.nodes("master")) {
      for await (const keys of node.scanStream({ count: 7 })) found.push(...keys);
    }
    assert.deepEqual(found.sort(), names.sort());
    await assert.rejects(redis.mget("a", "b"), /CROSSSLOT Keys in request don't hash to the same slot/);
    await redis.mset("{tag}a", 1, "{tag}b", 2);
    assert.deepEqual(await redis.mget("{tag}a", "{tag}b"), ["1", "2"]);
  });

  it("runs pipelines and transactions in a slot", async () => {
    assert.deepEqual(await redis.pipeline().set("{tag}a", 1).incr("{tag}a").get("{tag}a").exec(), [[null, "OK"], [null, 2], [null, "2"]]);
    assert.deepEqual(await redis.multi().incr("{tag}a").incr("{tag}b").exec(), [[null, 3], [null, 1]]);
    const automatic = cluster.connect({ enableAutoPipelining: true });
    const numbers = Array.from({ length: 200 }, (_, number) => number);
    assert.deepEqual(await Promise.all(numbers.map((number) => automatic.incrby(`key:${number}`, number))), numbers);
  });

  it("runs scripts", async () => {
    redis.defineCommand("up", { numberOfKeys: 1, lua: "return {KEYS[1], redis.call('incr', KEYS[1])}" });
    for (const name of ["a", "b", "c", "d"]) {
      assert.deepEqual([await redis.up(name), await redis.up(name)], [[name, 1], [name, 2]]);
      assert.equal(await redis.eval("return redis.call('get', KEYS[1])", 1, name), "2");
    }
    await Promise.all(redis.nodes("master").map((node) => node.script("FLUSH")));
    assert.deepEqual(await redis.pipeline().up("a").up("a").exec(), [[null, ["a", 3]], [null, ["a", 4]]]);
    const code = "#!lua name=lib\nredis.register_function('plus', function(keys) return redis.call('incr', keys[1]) end)";
    for (const node of redis.nodes("master")) await node.call("FUNCTION", "LOAD", "REPLACE", code);
    for (const name of ["a", "b", "c"]) assert.equal(await redis.fcall("plus", 1, `{${name}}new`), 1);
  });

  it("hears messages of all nodes, and of shards", async () => {
    const subscriber = cluster.connect({ shardedSubscribers: true });
    const heard = new Heard();
    subscriber.on("message", heard.add);
    const sharded = new Heard();
    subscriber.on("smessage", (channel, message) => sharded.add(channel, message));
    await subscriber.subscribe("news");
    for (const port of cluster.ports) await cluster.node(port).publish("news", port);
    assert.deepEqual((await heard.next(6)).sort(), cluster.ports.map((port) => ["news", String(port)]).sort());
    const channels = ["one", "two", "three", "four"];
    for (const channel of channels) await subscriber.ssubscribe(channel);
    for (const channel of channels) await redis.spublish(channel, "hello");
    assert.deepEqual((await sharded.next(4)).sort(), channels.map((channel) => [channel, "hello"]).sort());
  });

  it("reads from replicas", async () => {
    const reader = cluster.connect({ scaleReads: "slave" });
    for (let number = 0; number < 20; number++) await redis.set(`key:${number}`, number);
    for (let number = 0; number < 20; number++) await until(async () => (await reader.get(`key:${number}`)) === String(number));
    await assert.rejects(cluster.node(cluster.ports[3]).get("key:1"), /^ReplyError: MOVED /);
  });

  it("pops when there is something", async () => {
    const blocked = cluster.connect();
    const popped = blocked.blpop("{queue}a", "{queue}b", 20);
    await sleep(20);
    await redis.rpush("{queue}b", "job");
    assert.deepEqual(await popped, ["{queue}b", "job"]);
  });

  it("routes locks of the server", async (test) => {
    if (!(await isOurs())) return test.skip("the server is another one");
    for (let number = 0; number < 5; number++) {
      const lock = `lock:${number}`;
      const [fence, holds] = await redis.call("LOCK.ACQUIRE", lock, "me", "PX", 30000);
      assert.ok(fence > 0 && holds === 1);
      assert.equal((await redis.call("LOCK.ACQUIRE", lock, "you", "PX", 30000))[0], 0);
      assert.equal(await redis.call("LOCK.GUARD", lock, "me", "FENCE", fence), 1);
      assert.deepEqual(await redis.call("LOCK.RENEW", 1, lock, "me", "PX", 60000), [fence]);
      assert.equal(await redis.call("LOCK.RELEASE", lock, "me"), 0);
    }
    assert.ok((await redis.call("LOCK.MACQUIRE", 2, "{pair}a", "{pair}b", "me", "PX", 30000))[0] > 0);
    assert.ok(await redis.call("SEM.ACQUIRE", "semaphore", "me", "LIMIT", 1, "PX", 30000));
  });

  it("follows slots that move key by key, and at once, under load", async () => {
    const slot = await slotOf("{moving}");
    const source = await cluster.owner(slot);
    const target = cluster.ports.slice(0, 3).find((port) => port !== source);
    const keys = Array.from({ length: 20 }, (_, number) => `{moving}${number}`);
    const load = new Load(cluster.connect(), keys);
    await load.rounds();
    for (const [here, there] of [[source, target], [target, source]]) {
      const [old, next] = [cluster.node(here), cluster.node(there)];
      await next.cluster("SETSLOT", slot, "IMPORTING", await idOf(here));
      await old.cluster("SETSLOT", slot, "MIGRATING", await idOf(there));
      assert.equal(await redis.set(`{moving}new:${there}`, "asked"), "OK");
      for (let found; (found = await old.cluster("GETKEYSINSLOT", slot, 4)).length > 0; await load.rounds(1)) {
        await old.migrate("127.0.0.1", there, "", 0, 5000, "KEYS", ...found);
      }
      for (const node of [next, old]) await node.cluster("SETSLOT", slot, "NODE", await idOf(there));
      await cluster.agreed(slot, there);
      await load.rounds();
    }
    if (await isOurs()) {
      for (const [here, there] of [[source, target], [target, source]]) {
        await cluster.node(here).cluster("MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", await idOf(there));
        await cluster.agreed(slot, there);
        await load.rounds();
      }
    }
    await load.end();
    for (const [key, count] of load.counts) assert.equal(Number(await redis.get(key)), count);
  });

  /** A key of which a primary is the owner. */
  const lockOn = async (port) => {
    for (let number = 0; ; number++) if ((await cluster.owner(await slotOf(`{${number}}`))) === port) return `{${number}}lock`;
  };

  it("goes on after a failover, and after the death of a primary", async () => {
    const keys = Array.from({ length: 20 }, (_, number) => `key:${number}`);
    const [first, second, , replica, successor] = cluster.ports;
    const roleOf = async (port) => (await cluster.node(port).role())[0];
    const load = new Load(cluster.connect(), keys);
    await load.rounds();
    await cluster.node(replica).cluster("FAILOVER");
    await until(async () => (await roleOf(replica)) === "master" && (await roleOf(first)) === "slave");
    await load.rounds();
    // What a replica has confirmed outlives the primary.
    const lock = await lockOn(second);
    assert.equal(await cluster.node(second).set(lock, "mine", "NX"), "OK");
    const confirmed = cluster.node(second);
    assert.deepEqual(await confirmed.pipeline().set(`${lock}:value`, 1).wait(1, 5000).exec(), [[null, "OK"], [null, 1]]);
    await cluster.tell("kill", second);
    await until(async () => (await roleOf(successor)) === "master");
    await load.rounds();
    await cluster.tell("start", second);
    await until(async () => (await roleOf(second)) === "slave");
    assert.deepEqual([await redis.set(lock, "theirs", "NX"), await redis.get(lock), await redis.get(`${lock}:value`)], [null, "mine", "1"]);
    await load.end();
  });
});
