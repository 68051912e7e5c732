// Programs written with ioredis: scripts as commands, pipelines, transactions, pub/sub, blocking commands and streams.
import assert from "node:assert/strict";
import { after, before, beforeEach, describe, it } from "node:test";
import { Redis } from "ioredis";
import { Heard, startServer, until } from "./server.mjs";

for (const protocol of [2, 3]) {
  describe(`by RESP${protocol}`, () => {
    let server, redis;
    const clients = [];
    const connect = (options = {}) => {
      const client = new Redis({ path: server.path, protocol, ...options });
      clients.push(client);
      return client;
    };

    before(async () => {
      server = await startServer();
      redis = connect();
    });
    beforeEach(() => redis.flushall());
    after(async () => {
      for (const client of clients) client.disconnect();
      await server.stop();
    });

    it("unblocks a client that others see blocked", async () => {
      const blocked = connect({ retryStrategy: null });
      const id = await blocked.client("ID");
      const popped = blocked.blpop("nothing", 0);
      await until(async () => (await redis.client("LIST")).split("\n").some((line) => line.startsWith(`id=${id} `) && line.includes("cmd=blpop")));
      assert.equal(await redis.client("UNBLOCK", id), 1);
      assert.equal(await popped, null);
    });

    it("runs scripts that were defined as commands", async () => {
      const client = connect({
        scripts: {
          release: {
            numberOfKeys: 1,
            lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
          },
        },
      });
      client.defineCommand("both", { numberOfKeys: 2, lua: "return {KEYS[1], KEYS[2], ARGV[1], {1, false, 2.9}}" });
      client.defineCommand("any", { lua: "return #KEYS .. ':' .. #ARGV" });
      client.defineCommand("look", { numberOfKeys: 1, readOnly: true, lua: "return redis.call('get', KEYS[1])" });
      await client.set("lock", "mine");
      assert.equal(await client.release("lock", "theirs"), 0);
      assert.equal(await client.look("lock"), "mine");
      assert.equal(await client.release("lock", "mine"), 1);
      assert.deepEqual(await client.both("a", "b", "c"), ["a", "b", "c", [1, null, 2]]);
      assert.equal(await client.any(2, "k1", "k2", "v"), "2:1");
      assert.deepEqual(await client.bothBuffer("a", "b", "c"), [Buffer.from("a"), Buffer.from("b"), Buffer.from("c"), [1, null, 2]]);
      // Forgotten by the server, known by the client: sent anew, in a pipeline (then behind its other commands) as well.
      await redis.script("FLUSH");
      assert.equal(await client.release("lock", "mine"), 0);
      await redis.script("FLUSH");
      assert.deepEqual(await client.pipeline().set("lock", "mine").release("lock", "mine").exec(), [[null, "OK"], [null, 1]]);
      await client.look("lock");
      assert.deepEqual(await client.multi().set("lock", "mine").look("lock").exec(), [[null, "OK"], [null, "mine"]]);
    });

    it("keeps a lock to one owner", async () => {
      const release = { numberOfKeys: 1, lua: "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0" };
      let inside = 0, most = 0, entered = 0;
      const contend = async (number) => {
        const client = connect({ scripts: { release } });
        for (let round = 0; round < 5; round++) {
          const token = `${number}:${round}`;
          while ((await client.set("lock", token, "PX", 60_000, "NX")) === null);
          most = Math.max(most, ++inside);
          entered++;
          await client.incr("work");
          inside--;
          assert.equal(await client.release("lock", token), 1);
        }
      };
      await Promise.all(Array.from({ length: 10 }, (_, number) => contend(number)));
      assert.deepEqual([entered, most, await redis.exists("lock")], [50, 1, 0]);
    });

    it("keeps pipelines in order, with the errors of each command", async () => {
      const pipeline = redis.pipeline();
      for (let n = 0; n < 1000; n++) pipeline.set(`k${n}`, n).get(`k${n}`);
      const replies = await pipeline.exec();
      assert.ok(replies.every(([error, reply], index) => error === null && (index % 2 ? reply === String((index - 1) / 2) : reply === "OK")));
      const [, [error], [, list]] = await redis.pipeline().rpush("l", "a").incr("l").lrange("l", 0, -1).exec();
      assert.equal(error.message, "WRONGTYPE Operation against a key holding the wrong kind of value");
      assert.deepEqual(list, ["a"]);
      assert.deepEqual(await redis.hset("h", { a: 1, b: "x" }), 2);
      assert.deepEqual(await redis.hgetall("h"), { a: "1", b: "x" });
      assert.deepEqual(await redis.getBuffer("k1"), Buffer.from("1"));
    });

    it("gives up a transaction when a watched key changed", async () => {
      const client = connect();
      await client.set("n", 1);
      await client.watch("n");
      await redis.set("n", 2);
      assert.equal(await client.multi().incr("n").exec(), null);
      await client.watch("n");
      assert.deepEqual(await client.multi().incr("n").get("n").exec(), [[null, 3], [null, "3"]]);
      await assert.rejects(client.multi().set("n").incr("n").exec(), /EXECABORT Transaction discarded because of previous errors/);
    });

    it("hears channels and patterns, as texts and as bytes", async () => {
      const subscriber = connect();
      const heard = new Heard();
      for (const kind of ["message", "pmessage"]) subscriber.on(kind, (...event) => heard.add(kind, ...event));
      assert.equal(await subscriber.subscribe("news", "mail"), 2);
      assert.equal(await subscriber.psubscribe("n*"), 3);
      assert.equal(await redis.publish("news", "hello"), 2);
      assert.equal(await redis.publish("mail", "letter"), 1);
      assert.equal(await redis.publish("none", ""), 1);
      assert.deepEqual(await heard.next(4), [
        ["message", "news", "hello"], ["pmessage", "n*", "news", "hello"], ["message", "mail", "letter"], ["pmessage", "n*", "none", ""],
      ]);
      const bytes = new Promise((resolve) => subscriber.once("messageBuffer", (channel, data) => resolve([channel, data])));
      const raw = Buffer.from([0, 255, 13, 10]);
      await redis.publish("mail", raw);
      assert.deepEqual(await bytes, [Buffer.from("mail"), raw]);
      assert.deepEqual(await redis.pubsub("NUMSUB", "news", "none"), ["news", 1, "none", 0]);
      assert.equal(await subscriber.unsubscribe("news"), 2);
      assert.equal(await subscriber.punsubscribe("n*"), 1);
      assert.equal(await subscriber.unsubscribe(), 0);
      assert.equal(await subscriber.get("nothing"), null);
    });

    it("subscribes anew after its connection is lost", async () => {
      const subscriber = connect({ retryStrategy: () => 1 });
      const heard = new Heard();
      subscriber.on("message", heard.add);
      await subscriber.subscribe("news");
      await redis.client("KILL", "TYPE", "pubsub");
      await until(async () => subscriber.status === "ready" && (await redis.publish("news", "back")) === 1);
      assert.deepEqual(await heard.next(1), [["news", "back"]]);
    });

    it("waits for items and for entries", async () => {
      const [first, second, reader] = [connect(), connect(), connect()];
      const waiting = [first.blpop("empty", "queue", 20), second.brpop("queue", 20)];
      await until(async () => /blocked_clients:2/.test(await redis.info("clients")));
      assert.equal(await redis.rpush("queue", "a", "b"), 2);
      assert.deepEqual((await Promise.all(waiting)).map(([key]) => key), ["queue", "queue"]);
      assert.equal(await first.blpop("queue", 0.02), null);
      const popped = second.bzpopmin("jobs", 20);
      await redis.zadd("jobs", 2.5, "later", 1.5, "now");
      assert.deepEqual((await popped).map(String), ["jobs", "now", "1.5"]);
      const moved = first.blmove("from", "to", "LEFT", "RIGHT", 20);
      await redis.rpush("from", "x");
      assert.equal(await moved, "x");

      await redis.xgroup("CREATE", "events", "group", "$", "MKSTREAM");
      const entries = reader.xreadgroup("GROUP", "group", "one", "COUNT", 10, "BLOCK", 20_000, "STREAMS", "events", ">");
      const id = await redis.xadd("events", "*", "field", "value");
      // An array by RESP2 and a map by RESP3.
      const [[stream, [[readId, fields]]]] = [await entries].map((reply) => (Array.isArray(reply) ? reply[0] : reply))
        .map((reply) => (Array.isArray(reply) ? reply : reply instanceof Map ? [...reply][0] : Object.entries(reply)[0]));
      assert.deepEqual([stream, readId, fields], ["events", id, ["field", "value"]]);
      assert.equal(await redis.xack("events", "group", id), 1);
    });

    it("scans with streams", async () => {
      await redis.mset(Object.fromEntries(Array.from({ length: 500 }, (_, n) => [`key:${n}`, n])));
      await redis.set("other", 1);
      const seen = new Set();
      for await (const keys of redis.scanStream({ match: "key:*", count: 50 })) keys.forEach((key) => seen.add(key));
      assert.equal(seen.size, 500);
    });
  });
}
