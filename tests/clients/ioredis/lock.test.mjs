// examples/node/latchkey-lock.mjs, and redlock beside it on one key.
import assert from "node:assert/strict";
import { connect as connectSocket, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock from "redlock";
import { LatchkeyLock, LockLostError } from "./latchkey-lock.mjs";
import { startServer, until } from "./server.mjs";

/** What a lock protects: it refuses a fence below the highest that it has seen. */
class Resource {
  values = [];
  #highest = 0;
  write(value, fence) {
    if (fence < this.#highest) throw new Error("a stale fence");
    this.#highest = fence;
    this.values.push(value);
  }
}

for (const protocol of [2, 3]) {
  describe(`locks by RESP${protocol}`, () => {
    let server, redis, isOurs;
    const clients = [];
    const connect = (options = {}) => {
      const client = new Redis({ path: server.path, protocol, ...options });
      clients.push(client);
      return client;
    };
    const waiters = async () => (await redis.call("LOCK.WAITERS", "lock")).length;
    const lockOf = (options, client = redis) => new LatchkeyLock(client, "lock", options);
    const test = (name, work) => it(name, async (t) => (isOurs ? work() : t.skip("the server is another one")));

    before(async () => {
      server = await startServer();
      redis = connect();
      const parameter = await redis.config("GET", "redis-version");
      isOurs = (Array.isArray(parameter) ? parameter : Object.keys(parameter)).length > 0 || parameter.size > 0;
    });
    beforeEach(() => redis.flushall());
    after(async () => {
      for (const client of clients) client.disconnect();
      await server.stop();
    });

    test("are one owner's at a time, with a fence that grows", async () => {
      const [first, second] = [lockOf(), lockOf()];
      assert.equal(await first.acquire(), true);
      const fence = first.fence;
      assert.equal(await second.acquire({ timeout: 0 }), false);
      assert.equal(await second.acquire({ timeout: 20 }), false);
      await first.renew(3_600_000);
      assert.ok((await redis.pttl("lock")) > 3_000_000);
      const waiting = second.acquire();
      await until(async () => (await waiters()) === 1);
      await first.release();
      assert.equal(await waiting, true);
      assert.ok(second.fence > fence);
      await assert.rejects(first.release(), LockLostError);
      await assert.rejects(first.renew(), LockLostError);
      await second.release();
      assert.equal(await redis.exists("lock"), 0);
    });

    test("are not waited for any more after an abort", async () => {
      const held = lockOf();
      await held.acquire();
      const controller = new AbortController();
      const waiting = lockOf().acquire({ signal: controller.signal });
      await until(async () => (await waiters()) === 1);
      controller.abort(new Error("enough"));
      await assert.rejects(waiting, /enough/);
      assert.equal(await waiters(), 0);
      await held.release();
      await assert.rejects(lockOf().acquire({ signal: controller.signal }), /enough/);

      // An abort at any moment leaves nothing held and nobody waiting.
      const lock = async () => {
        for (let round = 0; round < 20; round++) {
          const one = lockOf();
          const end = new AbortController();
          setTimeout(() => end.abort(new Error("enough")), Math.random() * 6);
          try {
            await one.acquire({ signal: end.signal });
          } catch (error) {
            assert.equal(error.message, "enough");
            continue;
          }
          await one.release();
        }
      };
      await Promise.all([lock(), lock(), lock(), lock()]);
      assert.deepEqual([await waiters(), await redis.exists("lock")], [0, 0]);
    });

    test("end with the connection of their session", async () => {
      const process = connect();
      const held = lockOf({ lease: 3_600_000, grace: 20 }, process);
      await held.acquire();
      assert.equal(await redis.hget("lock", ":session"), "20 3600000");
      // Its process dies, as far as the server sees.
      await redis.client("KILL", "TYPE", "normal", "SKIPME", "yes");
      const following = lockOf();
      assert.equal(await following.acquire({ timeout: 20_000 }), true);
      assert.ok(following.fence > held.fence);
      await assert.rejects(held.release(), LockLostError);
      await following.release();
    });

    test("have fences by which a resource refuses a late owner", async () => {
      const [resource, late, following] = [new Resource(), lockOf({ lease: 20 }), lockOf()];
      await late.acquire();
      // The holder sleeps longer than its lease; neither the lock nor the server can stop it.
      assert.equal(await following.acquire({ timeout: 20_000 }), true);
      resource.write("new", following.fence);
      assert.throws(() => resource.write("old", late.fence), /a stale fence/);
      assert.deepEqual(resource.values, ["new"]);
      // The server itself compares fences where its own data is protected.
      const guarded = (lock, value) => lock.guard(redis.multi()).set("data", value).exec();
      assert.deepEqual(await guarded(following, "new"), [[null, 1], [null, "OK"]]);
      assert.equal(await guarded(late, "old"), null);
      assert.equal(await redis.get("data"), "new");
      await following.release();
    });

    test("are held through work that is told when they are lost", async () => {
      const lock = lockOf({ lease: 600 });
      // Longer than a lease: it is renewed.
      const result = await lock.using(async (signal) => {
        const fence = lock.fence;
        await sleep(900);
        assert.equal(signal.aborted, false);
        assert.equal(await redis.hget("lock", ":fence"), String(fence));
        return "done";
      });
      assert.deepEqual([result, await redis.exists("lock")], ["done", 0]);
      let told;
      await assert.rejects(
        lock.using(async (signal) => {
          await redis.call("LOCK.BREAK", "lock");
          await until(() => signal.aborted);
          told = signal.reason;
        }),
        LockLostError,
      );
      assert.ok(told instanceof LockLostError);
      await assert.rejects(lock.using(() => { throw new Error("its own"); }), /its own/);
      assert.equal(await redis.exists("lock"), 0);
    });

    test("are the same grant when they are asked for again after a lost reply", async () => {
      // A relay that breaks the connection instead of passing on the reply of LOCK.ACQUIRE.
      const lost = [];
      const relay = createServer((client) => {
        const upstream = connectSocket(server.path);
        let isAsked = false;
        client.on("data", (data) => {
          isAsked = data.includes("LOCK.ACQUIRE");
          upstream.write(data);
        });
        upstream.on("data", (data) => {
          if (isAsked && lost.length === 0) {
            lost.push(String(data));
            client.destroy();
          } else client.write(data);
        });
        client.on("close", () => upstream.destroy());
        client.on("error", () => {});
        upstream.on("error", () => {});
      });
      const path = join(tmpdir(), `relay-${process.pid}-${protocol}.sock`);
      await new Promise((resolve) => relay.listen(path, resolve));
      try {
        const unlucky = connect({ path, retryStrategy: () => 1 });
        await unlucky.ping();
        const lock = lockOf({}, unlucky);
        assert.equal(await lock.acquire(), true);
        assert.ok(lost[0].includes(`:${lock.fence}\r\n`), lost[0]);
        await lock.release();
        assert.equal(await redis.exists("lock"), 0);
        unlucky.disconnect();
      } finally {
        relay.close();
      }
    });

    test("that are lost leave their client in order", async () => {
      // By RESP3 it is told by a message that it did not ask for.
      for (let round = 0; round < 3; round++) {
        const lock = lockOf();
        await lock.acquire();
        await redis.del("lock");
        for (let n = 0; n < 5; n++) {
          await redis.set("k", n);
          assert.equal(await redis.get("k"), String(n));
        }
        await assert.rejects(lock.release(), LockLostError);
      }
    });

    test("exclude those of redlock on the same key", async () => {
      const redlock = new Redlock([connect()], { retryCount: 100_000, retryDelay: 1, retryJitter: 1, automaticExtensionThreshold: 100 });
      let [total, inside, most, entered] = [0, 0, 0, 0];
      const order = [];
      const work = async (number) => {
        const isNative = number % 2 === 0;
        for (let round = 0; round < 40; round++) {
          let held = lockOf();
          if (isNative) await held.acquire();
          else held = await redlock.acquire(["lock"], 30_000);
          most = Math.max(most, ++inside);
          entered++;
          // Read and write apart: a second owner would make an addition disappear.
          const seen = total;
          order.push(isNative);
          await sleep(0);
          total = seen + 1;
          inside--;
          await held.release();
          // Whoever polls gets a lock only while nobody is queued.
          await sleep(Math.random() * 5);
        }
      };
      await Promise.all(Array.from({ length: 6 }, (_, number) => work(number)));
      assert.deepEqual([total, entered, most, await redis.exists("lock")], [240, 240, 1, 0]);
      const turns = order.filter((isNative, at) => at > 0 && isNative !== order[at - 1]).length;
      assert.ok(turns > 2, `they took few turns: ${turns}`);
    });
  });
}
