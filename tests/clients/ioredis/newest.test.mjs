// Commands of the newest Redis by ioredis, which sends what it has no method for by call().
import assert from "node:assert/strict";
import { after, before, beforeEach, describe, it } from "node:test";
import { Redis } from "ioredis";
import { startServer } from "./server.mjs";

for (const protocol of [2, 3]) {
  describe(`the newest commands by RESP${protocol}`, () => {
    let server, redis;
    const call = (name, ...args) => redis.call(name, ...args);

    before(async () => {
      server = await startServer();
      redis = new Redis({ path: server.path, protocol });
    });
    beforeEach(() => redis.flushall());
    after(async () => {
      redis.disconnect();
      await server.stop();
    });

    it("compares strings and counts within bounds", async () => {
      await redis.set("k", "v");
      const digest = await call("DIGEST", "k");
      assert.equal(await call("SET", "k", "w", "IFNE", "v"), null);
      assert.equal(await call("SET", "k", "w", "IFDEQ", digest), "OK");
      assert.equal(await call("DELEX", "k", "IFEQ", "v"), 0);
      assert.equal(await call("DELEX", "k", "IFDNE", digest), 1);
      assert.equal(await call("MSETEX", 2, "a", 1, "b", 2, "EX", 100), 1);
      assert.deepEqual(await call("INCREX", "n", "BYINT", 3, "UBOUND", 5, "EX", 100, "ENX"), [3, 3]);
      assert.deepEqual(await call("INCREX", "n", "BYINT", 3, "UBOUND", 5, "SATURATE"), [5, 2]);
      assert.equal((await call("CL.THROTTLE", "t", 1, 1, 60))[0], 0);
    });

    it("moves elements and members, and counts sets", async () => {
      await redis.rpush("l", 1, 2, 3, 4);
      assert.deepEqual(await call("LMOVEM", "l", "m", "LEFT", "LEFT", "COUNT", 2, "BULK"), ["1", "2"]);
      assert.equal(await call("LMOVEM", "l", "m", "LEFT", "LEFT", "EXACTLY", 9, "OBO"), null);
      assert.deepEqual(await call("BLMOVEM", "l", "m", "RIGHT", "RIGHT", 1), ["4"]);
      await redis.sadd("s", "a", "b");
      await redis.sadd("t", "b", "c");
      assert.equal(await call("SUNIONCARD", 2, "s", "t"), 3);
      assert.equal(await call("SDIFFCARD", 2, "s", "t"), 1);
      await redis.zadd("y", 5, "a", 7, "b", 9, "c");
      await redis.zadd("z", 9, "b");
      assert.equal(await call("ZUNIONSTORE", "d", 2, "y", "z", "WEIGHTS", 2, 3, "AGGREGATE", "COUNT"), 3);
      assert.equal(Number(await redis.zscore("d", "b")), 5);
      assert.equal((await call("ZMOVE", "y", "z", "MIN"))[0], "a");
      assert.equal((await call("BZMOVE", "y", "z", "MAX", 1))[0], "c");
      assert.equal(await call("ZMOVEMEMBER", "y", "z", "b"), 1);
    });

    it("has queues of streams", async () => {
      const first = await call("XADD", "x", "IDMP", "p", "1", "*", "f", "v");
      assert.equal(await call("XADD", "x", "IDMP", "p", "1", "*", "f", "v"), first);
      const second = await call("XADD", "x", "IDMPAUTO", "p", "*", "f", "v");
      assert.equal(await call("XCFGSET", "x", "IDMP-DURATION", 10), "OK");
      assert.equal(await call("XIDMPRECORD", "x", "q", "1", second), "OK");
      await redis.xgroup("CREATE", "x", "g", 0);
      await call("XREADGROUP", "GROUP", "g", "dead", "MAXCOUNT", 1, "MAXSIZE", 1000, "STREAMS", "x", ">");
      assert.equal(await call("XNACK", "x", "g", "FAIL", "IDS", 1, first), 1);
      const taken = await call("XREADGROUP", "GROUP", "g", "heir", "COUNT", 1, "CLAIM", 60000, "STREAMS", "x", ">");
      assert.match(JSON.stringify(taken), new RegExp(first));
      assert.deepEqual(await call("XACKDEL", "x", "g", "DELREF", "IDS", 2, first, "7-7"), [1, -1]);
      assert.deepEqual(await call("XDELEX", "x", "ACKED", "IDS", 1, second), [2]);
      assert.equal(await call("XTRIM", "x", "MAXLEN", "=", 0, "KEEPREF"), 1);
    });

    it("gives fields deadlines and imports hashes", async () => {
      assert.equal(await call("HSETEX", "h", "EX", 100, "FIELDS", 2, "f", "v", "g", "w"), 1);
      assert.deepEqual(await call("HGETEX", "h", "PERSIST", "FIELDS", 1, "f"), ["v"]);
      assert.deepEqual(await call("HGETDEL", "h", "FIELDS", 2, "f", "g"), ["v", "w"]);
      assert.equal(await call("HIMPORT", "PREPARE", "user", "name", "age"), "OK");
      assert.equal(await call("HIMPORT", "SET", "user:1", "user", "ann", 30), "OK");
      assert.deepEqual(await redis.hmget("user:1", "name", "age"), ["ann", "30"]);
      assert.equal(await call("HIMPORT", "DISCARDALL"), 1);
    });

    it("finds hot keys and blesses others", async () => {
      assert.equal(await call("HOTKEYS", "START", "METRICS", 1, "CPU"), "OK");
      await redis.incr("hot");
      assert.equal(await call("HOTKEYS", "STOP"), "OK");
      assert.match(JSON.stringify(await call("HOTKEYS", "GET")), /"hot"/);
      assert.equal(await call("HOTKEYS", "RESET"), "OK");
      assert.equal(await call("BLESS", "SET", "hot", "NO-EVICT"), 1);
      assert.deepEqual(await call("BLESS", "GET", "hot"), ["NO-EVICT"]);
      assert.match(await redis.info("stats"), /blessed_keys:1/);
      assert.equal(await call("BLESS", "CLEAR", "hot", "NO-EVICT"), 1);
    });
  });
}
