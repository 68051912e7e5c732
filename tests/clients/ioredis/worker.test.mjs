// examples/node/latchkey-worker.mjs.
import assert from "node:assert/strict";
import { after, before, beforeEach, describe, it } from "node:test";
import { Redis } from "ioredis";
import { LatchkeyWorker } from "./latchkey-worker.mjs";
import { startServer } from "./server.mjs";

for (const protocol of [2, 3]) {
  describe(`a worker by RESP${protocol}`, () => {
    let server, redis, isOurs;
    const test = (name, work) => it(name, async (t) => (isOurs ? work() : t.skip("the server is another one")));
    before(async () => {
      server = await startServer();
      redis = new Redis({ path: server.path, protocol });
      const parameter = await redis.config("GET", "redis-version");
      isOurs = (Array.isArray(parameter) ? parameter : Object.keys(parameter)).length > 0 || parameter.size > 0;
    });
    beforeEach(() => redis.flushall());
    after(async () => {
      redis.disconnect();
      await server.stop();
    });

    test("does jobs for now and later, and ends what fails as a dead letter", async () => {
      const seen = [];
      const handle = async (fields) => {
        seen.push(fields.data);
        if (fields.data === "bad") throw new Error("bad");
      };
      const worker = new LatchkeyWorker(redis, "{jobs}", handle, { attempts: 2, pause: 10 });
      await worker.create();
      await redis.xadd("{jobs}", "*", "data", "bad");
      await redis.zadd("{jobs}:later", Date.now() + 50, "later");
      while (await worker.workOnce(redis, 500));
      assert.deepEqual(seen.sort(), ["bad", "bad", "later"]);
      assert.equal(await redis.xlen("{jobs}"), 0);
      assert.equal(await redis.xlen("{jobs}:dead"), 1);
    });

    test("gives its jobs to others when it leaves", async () => {
      const controller = new AbortController();
      const worker = new LatchkeyWorker(redis, "{jobs}", async () => controller.abort());
      await worker.create();
      await redis.xadd("{jobs}", "*", "data", "job");
      await worker.run(controller.signal, 10);
      assert.deepEqual(await redis.call("XINFO", "CONSUMERS", "{jobs}", "workers"), []);
    });
  });
}
