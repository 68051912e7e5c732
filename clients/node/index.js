// Locks, semaphores and rate limits of a Latchkey server, through ioredis or node-redis. Times are milliseconds.
import { randomUUID } from "node:crypto";
import { clientOf } from "./clients.js";

/** Bounds one request, so that a server that vanished is noticed. Each further one begins at the end of the queue. */
const LONGEST_WAIT = 60_000;
/** How many connections may break one after the other, before an acquisition gives up. */
const TRIES = 3;

/** Others hold it, and the time to wait is over. `holder`: who; null where others only stand in line before, and for permits. */
export class NotGrantedError extends Error {
  name = "NotGrantedError";
  constructor(key, holder) {
    super(holder ? `${key} is held by ${holder}` : `${key} is not free`);
    this.holder = holder;
  }
}

/** The grant has ended: by its lease, its session, or somebody's hand. */
export class LockLostError extends Error {
  name = "LockLostError";
}

// Errors of the server begin with a code, those of a connection do not.
const isReply = (error) => /^[A-Z]+[A-Z0-9]* /.test(error.message);

export class Locks {
  #client;

  constructor(client) {
    this.#client = clientOf(client);
  }

  acquire(keys, options = {}) {
    return new Lock(this.#client, keys, options)._take(options);
  }

  permits(key, limit, options = {}) {
    return new Permits(this.#client, key, limit, options)._take(options);
  }

  withLock(keys, options, work) {
    return scope(this.acquire(keys, options), work);
  }

  withPermits(key, limit, options, work) {
    return scope(this.permits(key, limit, options), work);
  }

  async throttle(key, { count, period, burst = 0, quantity = 1 }) {
    const reply = await this.#client.send(["CL.THROTTLE", key, burst, count, period, quantity].map(String));
    const [limited, limit, remaining, retryAfter, resetAfter] = reply;
    return { allowed: !limited, limit, remaining, retryAfter: retryAfter < 0 ? null : retryAfter, resetAfter };
  }
}

async function scope(taking, work) {
  const grant = await taking;
  let result;
  try {
    result = await work(grant, grant.watch());
  } catch (error) {
    // It tells more than an error of the release, which it gets as a property.
    await grant.release().catch((failed) => Object.isExtensible(error) && (error.lockError = failed));
    throw error;
  }
  await grant.release();
  return result;
}

/** What a lock and permits have in common. */
class Grant {
  fence = null;
  #client;
  #own = null;
  #until = 0;
  #ended = new AbortController();

  constructor(client, key, { lease = 30_000, grace = null, owner = randomUUID() }) {
    this.#client = client;
    Object.assign(this, { key, lease, grace, owner });
  }

  left() {
    return Math.max(0, this.#until - performance.now());
  }

  async renew(lease = this.lease) {
    const began = performance.now();
    for (const [request, expected] of this._renewals(lease)) {
      const [reply] = await this._twice(request);
      if (String(reply) !== String(expected)) throw this.#lost();
    }
    this.#until = Math.max(this.#until, began + lease);
  }

  async release({ keep = 0 } = {}) {
    this.#ended.abort();
    let isLost = false;
    try {
      for (const [request, least] of this._releases(keep)) {
        // Where it was repeated, the first may have done it, and what the second says of a loss means nothing.
        const [left, isRepeated] = await this._twice(request);
        isLost ||= !isRepeated && left < least;
      }
    } finally {
      this.#until = 0;
      await this.#close();
    }
    if (isLost) throw this.#lost();
  }

  async attach() {
    // Whoever asks over a new connection has attached it already.
    return (await this._twice(["LOCK.ATTACH", this.owner]))[0] > 0;
  }

  watch(every = this.lease / 3) {
    const lost = new AbortController();
    const beat = async () => {
      try {
        await this.renew();
      } catch (error) {
        if (this.#ended.signal.aborted) return;
        if (error instanceof LockLostError || this.left() === 0) return lost.abort(error instanceof LockLostError ? error : this.#lost());
      }
      next();
    };
    const next = () => {
      if (this.#ended.signal.aborted) return;
      const timer = setTimeout(beat, Math.min(every, Math.max(1, this.left())));
      timer.unref();
      this.#ended.signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
    };
    next();
    return lost.signal;
  }

  [Symbol.asyncDispose ?? Symbol.for("nodejs.asyncDispose")]() {
    return this.release();
  }

  async _take({ wait = Infinity, signal }) {
    signal?.throwIfAborted();
    const end = performance.now() + wait;
    const request = [...this._question(), "PX", this.lease, ...this._options()];
    if (this.grace !== null) request.push("SESSION", "GRACE", this.grace);
    // A wait ends with its connection.
    const abort = () => this.#close();
    signal?.addEventListener("abort", abort);
    try {
      for (let [block, broken] = [0, 0]; ; ) {
        const began = performance.now();
        let reply;
        try {
          reply = await this.#ask(block ? [...request, "BLOCK", block] : request, block > 0);
          signal?.throwIfAborted();
        } catch (error) {
          // It may have been granted. The same owner that asks again finds its grant, or stands in the queue anew.
          if (isReply(error) || ++broken === TRIES || signal?.aborted) throw error;
          block = 0;
          continue;
        }
        broken = 0;
        if (reply[0] && performance.now() - began <= this.lease / 10) {
          this.#until = began + this._read(reply);
          break;
        }
        // A lease that began in a long wait is measured by asking again, which gets the same grant.
        block = reply[0] ? 0 : Math.min(LONGEST_WAIT, Math.ceil(end - performance.now()));
        if (!reply[0] && block <= 0) throw new NotGrantedError(this.key, this._holder(reply));
      }
    } catch (error) {
      await this.#close();
      // Aborted, or the connection broke: nobody will release what may have been granted. Else it ends with its lease.
      if (signal?.aborted || !(error instanceof NotGrantedError || isReply(error))) await this._abandon().catch(() => {});
      await this.#close();
      throw signal?.aborted ? signal.reason : error;
    } finally {
      signal?.removeEventListener("abort", abort);
    }
    if (this.grace === null) await this.#close();
    return this;
  }

  /** Gives back what may have been granted although nobody got to know: without a fence, as that is unknown too. */
  async _abandon() {
    for (const [request] of this._releases(0)) await this._twice(request);
  }

  /** Asks again if the connection breaks: requests of locks may be repeated. Gives the reply, and whether it is the second. */
  async _twice(request) {
    const breaks = this.#client.breaks();
    try {
      const reply = await this.#ask(request);
      return [reply, breaks() > 0];
    } catch (error) {
      if (isReply(error)) throw error;
      return [await this.#ask(request), true];
    } finally {
      breaks.end();
    }
  }

  /** By the client; a wait and a session have a connection that nobody else uses. */
  async #ask(request, isLong = false) {
    const words = request.map(String);
    if (!isLong && this.grace === null) return this.#client.send(words);
    const isNew = this.#own === null;
    const own = (this.#own ??= this.#client.own());
    try {
      if (isNew && this.fence !== null) await own.send(["LOCK.ATTACH", this.owner]);
      return await own.send(words);
    } catch (error) {
      if (!isReply(error)) await this.#close();
      throw error;
    }
  }

  /** Waits until the server has seen it: nothing is granted to it afterwards. */
  async #close() {
    const own = this.#own;
    this.#own = null;
    await own?.close();
  }

  #lost() {
    this.#until = 0;
    return new LockLostError(`${this.key} is no longer held by ${this.owner}`);
  }
}

export class Lock extends Grant {
  constructor(client, keys, options) {
    const all = [keys].flat();
    super(client, all[0], options);
    this.keys = all;
    this.shared = options.shared ?? false;
  }

  async held() {
    for (const request of this.#guards()) if (!(await this._twice(request))[0]) return false;
    return true;
  }

  guard(transaction) {
    for (const [name, ...words] of this.#guards()) {
      if (transaction.call) transaction.call(name, ...words);
      else transaction.addCommand([name, ...words].map(String));
    }
    return transaction;
  }

  #guards() {
    return this.keys.map((key) => ["LOCK.GUARD", key, this.owner, "FENCE", this.fence]);
  }

  _question() {
    return this.keys.length === 1 ? ["LOCK.ACQUIRE", this.key, this.owner] : ["LOCK.MACQUIRE", this.keys.length, ...this.keys, this.owner];
  }

  _options() {
    return this.shared ? ["SHARED"] : [];
  }

  _read(reply) {
    this.fence = reply[0];
    return reply.at(-1);
  }

  _holder(reply) {
    return String(reply[3]) || null;
  }

  _renewals(lease) {
    return [[["LOCK.RENEW", this.keys.length, ...this.keys, this.owner, "PX", lease], this.keys.map(() => this.fence)]];
  }

  _releases(keep) {
    const fence = this.fence === null ? [] : ["FENCE", this.fence];
    return this.keys.map((key) => [["LOCK.RELEASE", key, this.owner, ...fence, ...(keep ? ["KEEP", keep] : [])], 0]);
  }
}

export class Permits extends Grant {
  permits = [];
  free = null;

  constructor(client, key, limit, options) {
    super(client, key, options);
    this.limit = limit;
    this.count = options.count ?? 1;
  }

  _question() {
    return ["SEM.ACQUIRE", this.key, this.owner, "LIMIT", this.limit];
  }

  _options() {
    return ["COUNT", this.count];
  }

  _read(reply) {
    [this.permits, this.fence, this.free] = [reply[0].map(String), reply[1], reply[2]];
    return this.lease;
  }

  _holder() {
    return null;
  }

  _renewals(lease) {
    return this.permits.map((permit) => [["SEM.RENEW", this.key, permit, "PX", lease], 1]);
  }

  _releases() {
    return [[["SEM.RELEASE", this.key, ...this.permits], this.permits.length]];
  }

  async _abandon() {
    // Their names are known by asking again.
    const [reply] = await this._twice([...this._question(), "PX", this.lease, ...this._options()]);
    if (!reply[0]) return;
    this._read(reply);
    await super._abandon();
  }
}
