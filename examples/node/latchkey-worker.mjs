// A worker for a queue of a Latchkey server through ioredis: docs/queues.md.
//
//   const worker = new LatchkeyWorker(redis, "{jobs}", async (fields, signal) => console.log(fields));
//   await worker.run(abortController.signal);
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

/**
 * Hands jobs to `handle`, one at a time, and renews the lease while it works; `signal` says that the lease is lost. A job whose
 * handler throws comes again after a pause, which doubles each time; after `attempts` it is a dead letter.
 */
export class LatchkeyWorker {
  constructor(redis, queue, handle, { group = "workers", lease = 30_000, attempts = 5, pause = 1000 } = {}) {
    // One name for each thing that works at a time: it fences.
    const name = `${hostname()}:${process.pid}:${randomUUID().slice(0, 8)}`;
    Object.assign(this, { redis, queue, handle, group, lease, attempts, pause, name });
  }

  async create() {
    await this.redis.call("XGROUP", "CREATE", this.queue, this.group, "0", "MKSTREAM").catch((error) => {
      if (!error.message.startsWith("BUSYGROUP")) throw error;
    });
  }

  async run(signal, block = 1000) {
    await this.create();
    // Commands wait for those before them on their connection: the wait has one of its own.
    const reader = this.redis.duplicate();
    try {
      while (!signal?.aborted) await this.workOnce(reader, block);
    } finally {
      reader.disconnect();
      await this.redis.call("XGROUP", "DELCONSUMER", this.queue, this.group, this.name, "RELEASE");
    }
  }

  /** Takes one job; false if there is none. */
  async workOnce(reader = this.redis, block = 1000) {
    const { queue, group, name, lease } = this;
    let reply = await reader.call(
      "XREADGROUP", "GROUP", group, name, "COUNT", 1, "BLOCK", block, "CLAIM", lease, "DUE", `${queue}:later`, "UNIT", "MS",
      "MAXDELIVERIES", this.attempts, "DEADLETTER", `${queue}:dead`, "STREAMS", queue, ">");
    if (!reply) return false;
    // RESP3's map, or RESP2's pairs.
    const entries = Array.isArray(reply) ? (Array.isArray(reply[0]) ? reply[0][1] : reply[1]) : Object.values(reply)[0];
    const [id, flat, , deliveries] = entries[0];
    const fields = {};
    for (let at = 0; at < flat.length; at += 2) fields[flat[at]] = flat[at + 1];
    const lost = new AbortController();
    const heartbeat = setInterval(async () => {
      const renewed = await this.redis.call("XCLAIM", queue, group, name, 0, id, "JUSTID", "OWNER", name).catch(() => [id]);
      if (renewed.length === 0) lost.abort(new Error("the lease is lost"));
    }, lease / 3);
    try {
      await this.handle(fields, lost.signal);
      await this.redis.call("XACKDEL", queue, group, "ACKED", "OWNER", name, "IDS", 1, id);
    } catch {
      const pause = this.pause * 2 ** Math.min(deliveries, 20);
      await this.redis.call("XNACK", queue, group, "FAIL", "IDS", 1, id, "OWNER", name, "DELAY", pause);
    } finally {
      clearInterval(heartbeat);
    }
    return true;
  }
}
