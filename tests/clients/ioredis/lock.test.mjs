// redlock beside the package of locks (clients/node) on one key.
import assert from "node:assert/strict";
import { after, before, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock from "redlock";
import { LockLostError, Locks } from "./latchkey-locks/index.js";
import { startServer } from "./server.mjs";

for (const protocol of [2, 3]) {
  describe(`locks by RESP${protocol}`, () => {
    let server, redis, isOurs;
    const clients = [];
    const connect = (options = {}) => {
      const client = new Redis({ path: server.path, protocol, ...options });
      clients.push(client);
      return client;
    };
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

    test("that are lost leave their client in order", async () => {
      // By RESP3 it is told by a message that it did not ask for.
      for (let round = 0; round < 3; round++) {
        const lock = await new Locks(redis).acquire("lock");
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
          const held = isNative ? await new Locks(redis).acquire("lock") : await redlock.acquire(["lock"], 30_000);
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
