// BullMQ's queues: everything they do is a script, with arguments in MessagePack and replies in JSON, and one blocking command.
import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { FlowProducer, Queue, QueueEvents, UnrecoverableError, Worker } from "bullmq";
import { Redis } from "ioredis";
import { startCluster } from "./cluster.mjs";
import { Heard, startServer, until } from "./server.mjs";

/** A server: `redis` is its client, `connection` what BullMQ takes, `prefix` begins all keys. */
async function oneServer() {
  const server = await startServer();
  const redis = new Redis({ path: server.path });
  return {
    redis,
    connection: { path: server.path, maxRetriesPerRequest: null },
    prefix: "bull",
    flush: () => redis.flushall(),
    async stop() {
      redis.disconnect();
      await server.stop();
    },
  };
}

/** A cluster: BullMQ's keys are in one slot by their prefix. */
async function aCluster() {
  const cluster = await startCluster();
  const redis = cluster.connect({ redisOptions: { maxRetriesPerRequest: null } });
  await until(() => redis.status === "ready");
  // BullMQ does not end all copies that it makes of a client that it was given.
  const duplicate = redis.duplicate.bind(redis);
  redis.duplicate = (...how) => cluster.keep(duplicate(...how));
  const flush = () => Promise.all(redis.nodes("master").map((node) => node.flushall()));
  return { redis, connection: redis, prefix: "{bull}", flush, stop: cluster.stop };
}

for (const [where, start] of [["a server", oneServer], ["a cluster", aCluster]]) describe(`BullMQ over ${where}`, () => {
  let server, redis, connection, prefix, opened;

  before(async () => {
    server = await start();
    ({ redis, connection, prefix } = server);
  });
  after(() => server.stop());
  beforeEach(async () => {
    await server.flush();
    opened = [];
  });
  afterEach(async () => {
    for (const one of opened.reverse()) await one.close();
  });

  const open = (one) => {
    one.on("error", (error) => assert.fail(error));
    opened.push(one);
    return one;
  };
  const queueOf = (name) => open(new Queue(name, { connection, prefix }));
  const workerOf = (name, work, options) => open(new Worker(name, work, { connection, prefix, ...options }));
  const eventsOf = async (name) => {
    const events = open(new QueueEvents(name, { connection, prefix }));
    await events.waitUntilReady();
    return events;
  };

  it("gives a parent's dependencies in pages", async () => {
    // Too long a name for a listpack, which would be one page.
    const queueName = "children-of-the-parent".padEnd(40, "-");
    const children = Array.from({ length: 72 }, () => ({ name: "child", data: {}, queueName }));
    const flow = open(new FlowProducer({ connection, prefix }));
    const pages = new Promise((resolve, reject) => {
      workerOf("parents", async (job) => {
        const first = await job.getDependencies({ processed: { cursor: 0, count: 50 } });
        const cursor = first.nextProcessedCursor;
        return job.getDependencies({ processed: { cursor, count: 50 } }).then((second) => resolve([first, second]), reject);
      });
    });
    await flow.add({ name: "parent", queueName: "parents", data: {}, children });
    workerOf(queueName, async () => ({ bar: "something" }));
    const [first, second] = await pages;
    assert.equal(second.nextProcessedCursor, 0);
    const found = [first, second].flatMap((page) => Object.keys(page.processed));
    assert.ok(Object.keys(first.processed).length >= 50, "a page is filled");
    assert.deepEqual([found.length, new Set(found).size], [72, 72]);
  });

  it("gives each job to one of the workers and its result back", async () => {
    const queue = queueOf("sums");
    const events = await eventsOf("sums");
    for (const one of [queue, events]) one.setMaxListeners(0);
    const seen = [];
    for (let number = 0; number < 3; number++) {
      workerOf("sums", async (job) => {
        seen.push(job.id);
        await job.updateProgress(50);
        await job.log("half");
        return job.data.a + job.data.b;
      }, { concurrency: 4 });
    }
    const jobs = await queue.addBulk(Array.from({ length: 60 }, (_, n) => ({ name: "add", data: { a: n, b: 1 } })));
    assert.deepEqual(await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 30_000))), jobs.map((_, n) => n + 1));
    assert.deepEqual([seen.length, new Set(seen).size], [60, 60]);
    assert.deepEqual(await queue.getJobCounts("completed", "waiting", "active", "failed"), { completed: 60, waiting: 0, active: 0, failed: 0 });
    const job = await queue.getJob(jobs[7].id);
    assert.deepEqual([job.returnvalue, job.progress, await job.getState()], [8, 50, "completed"]);
    assert.deepEqual(await queue.getJobLogs(job.id), { logs: ["half"], count: 1 });
  });

  it("starts delayed jobs when they are due", async () => {
    const queue = queueOf("delayed");
    const done = new Heard();
    for (const delay of [300, 100, 200]) await queue.add("later", { delay }, { delay });
    const never = await queue.add("never", {}, { delay: 3_600_000 });
    assert.equal(await queue.getDelayedCount(), 4);
    workerOf("delayed", async (job) => done.add(job.timestamp + job.data.delay, Date.now()));
    const jobs = await done.next(3);
    assert.ok(jobs.every(([due, begun]) => begun >= due), "none starts early");
    // By their times, which depend on when each was added.
    assert.deepEqual(jobs.map(([due]) => due), jobs.map(([due]) => due).sort((a, b) => a - b));
    await never.promote();
    await done.next(1);
  });

  it("takes the jobs of the best priority first", async () => {
    const queue = queueOf("priorities");
    for (const [name, priority] of [["c", 10], ["b", 5], ["d", 10], ["first", 0], ["a", 1]]) await queue.add(name, {}, { priority });
    assert.deepEqual(await queue.getCountsPerPriority([0, 1, 5, 10]), { 0: 1, 1: 1, 5: 1, 10: 2 });
    const done = new Heard();
    workerOf("priorities", async (job) => done.add(job.name), { concurrency: 1 });
    assert.deepEqual(await done.next(5), [["first"], ["a"], ["b"], ["c"], ["d"]]);
  });

  it("tries a failing job again, after a pause", async () => {
    const queue = queueOf("retries");
    const events = await eventsOf("retries");
    workerOf("retries", async (job) => {
      if (job.name === "hopeless") throw new UnrecoverableError("no use");
      if (job.attemptsMade < 2 || job.name === "failing") throw new Error(`attempt ${job.attemptsMade}`);
      return job.attemptsMade;
    });
    const options = { attempts: 3, backoff: { type: "exponential", delay: 10 } };
    const [good, bad, hopeless] = await Promise.all(["good", "failing", "hopeless"].map((name) => queue.add(name, {}, options)));
    assert.equal(await good.waitUntilFinished(events, 30_000), 2);
    await assert.rejects(bad.waitUntilFinished(events, 30_000), /attempt 2/);
    await assert.rejects(hopeless.waitUntilFinished(events, 30_000), /no use/);
    const failed = await queue.getFailed();
    assert.deepEqual(failed.map((job) => [job.name, job.attemptsMade]).sort(), [["failing", 3], ["hopeless", 1]]);
    assert.equal((await queue.getJob(bad.id)).stacktrace.length, 3);
  });

  it("makes jobs again and again", async () => {
    const queue = queueOf("repeated");
    await queue.upsertJobScheduler("tick", { every: 50, limit: 3 }, { name: "tick", data: { n: 1 } });
    await queue.upsertJobScheduler("rare", { pattern: "0 0 1 1 *" }, { name: "rare" });
    assert.equal(await queue.getJobSchedulersCount(), 2);
    const done = new Heard();
    workerOf("repeated", async (job) => done.add(job.name, job.data.n));
    assert.deepEqual(await done.next(3), [["tick", 1], ["tick", 1], ["tick", 1]]);
    assert.ok(await queue.removeJobScheduler("rare"));
    await until(async () => (await queue.getDelayedCount()) === 0);
  });

  it("runs a job after the jobs that it needs", async () => {
    const flow = open(new FlowProducer({ connection, prefix }));
    const queue = queueOf("parts");
    const events = await eventsOf("whole");
    workerOf("parts", async (job) => job.data.value * 2);
    workerOf("whole", async (job) => Object.values(await job.getChildrenValues()).reduce((sum, value) => sum + value, 0));
    const { job } = await flow.add({
      name: "sum",
      queueName: "whole",
      children: [1, 2, 3].map((value) => ({ name: "double", queueName: "parts", data: { value } })),
    });
    assert.equal(await job.waitUntilFinished(events, 30_000), 12);
    assert.equal(await queue.getCompletedCount(), 3);
  });

  it("limits the rate, rests while it is paused, and forgets duplicates", async () => {
    const queue = queueOf("calm");
    await queue.pause();
    assert.ok(await queue.isPaused());
    const one = await queue.add("job", {}, { jobId: "same" });
    const two = await queue.add("job", {}, { jobId: "same" });
    assert.deepEqual([one.id, two.id, await queue.count()], ["same", "same", 1]);
    await queue.addBulk(Array.from({ length: 5 }, () => ({ name: "job", data: {} })));
    const done = new Heard();
    workerOf("calm", async () => done.add(Date.now()), { limiter: { max: 2, duration: 100 } });
    await sleep(30);
    assert.equal(done.all.length, 0);
    await queue.resume();
    const times = (await done.next(6)).flat();
    assert.ok(times[5] - times[0] >= 190, "six jobs in less than two pauses");
  });

  it("hands a stalled job to another worker", async () => {
    const queue = queueOf("stalled");
    const stalled = new Heard();
    const dead = new Worker("stalled", () => new Promise(() => {}), { connection, prefix, lockDuration: 50, skipLockRenewal: true, skipStalledCheck: true });
    dead.on("error", () => {});
    await dead.waitUntilReady();
    const job = await queue.add("job", {});
    await until(async () => (await job.getState()) === "active");
    const worker = workerOf("stalled", async () => "saved", { stalledInterval: 60, lockDuration: 5000 });
    worker.on("stalled", (id) => stalled.add(id));
    assert.deepEqual(await stalled.next(1), [[job.id]]);
    await until(async () => (await job.getState()) === "completed");
    assert.equal((await queue.getJob(job.id)).returnvalue, "saved");
    await dead.close(true);
  });

  it("empties and removes a queue", async () => {
    const queue = queueOf("old");
    await queue.addBulk(Array.from({ length: 20 }, (_, n) => ({ name: "job", data: { n }, opts: n % 2 ? { delay: 60_000 } : {} })));
    assert.equal((await queue.getJobs(["waiting"], 0, 4, true)).length, 5);
    await queue.drain();
    assert.deepEqual([await queue.getWaitingCount(), await queue.getDelayedCount()], [0, 10]);
    await queue.obliterate({ force: true });
    assert.deepEqual(await redis.keys(`${prefix}:old:*`), []);
  });
});
