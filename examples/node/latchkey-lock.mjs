// A lock of a Latchkey server through ioredis. See ../README.md for its traps.
//
//   const lock = new LatchkeyLock(redis, "jobs");
//   await lock.using(async (signal) => resource.write(value, lock.fence));
import { randomUUID } from "node:crypto";

/** The lock is no longer held: its lease or its session has ended, or somebody took it away. */
export class LockLostError extends Error {}

/** Bounds one request. A longer wait is made of several, each at the end of the queue. */
const LONGEST_WAIT_MS = 30_000;

/** One object is one owner, which holds the lock once at most. */
export class LatchkeyLock {
  /** The number of the grant, 0 if it is not held. Hand it to whatever the lock protects. */
  fence = 0;
  #own = null;

  /**
   * `lease`: milliseconds after which a holder that is not heard of loses the lock. `grace`: the lock ends so many milliseconds
   * after its connection closes, and the lease counts from the connection's last sign of life.
   */
  constructor(redis, key, { lease = 30_000, grace = 0, owner = randomUUID() } = {}) {
    Object.assign(this, { redis, key, lease, grace, owner });
  }

  /**
   * Takes the lock, or waits for it; false when `timeout` milliseconds are over. An abort ends the wait with the signal's reason.
   * After another error the lock may be held: asking again gets the same grant.
   */
  async acquire({ timeout = Infinity, signal } = {}) {
    signal?.throwIfAborted();
    const end = performance.now() + timeout;
    let granted = false;
    // Commands wait for those before them on their connection: a wait has one of its own.
    const abort = () => this.#own?.disconnect();
    signal?.addEventListener("abort", abort);
    try {
      granted = await this.#ask(this.grace ? this.#connection() : this.redis);
      while (!granted && !signal?.aborted) {
        const left = Math.min(Math.ceil(end - performance.now()), LONGEST_WAIT_MS);
        if (left <= 0) break;
        granted = await this.#ask(this.#connection(), "BLOCK", left);
      }
    } catch (error) {
      if (!signal?.aborted) throw error;
    } finally {
      signal?.removeEventListener("abort", abort);
      if (!granted || !this.grace) await this.#close();
    }
    if (signal?.aborted) {
      // Without a fence: the reply that named it may be lost.
      await this.redis.call("LOCK.RELEASE", this.key, this.owner);
      this.fence = 0;
      throw signal.reason;
    }
    return granted;
  }

  /** Gives the lock back. Throws LockLostError. */
  async release() {
    const left = await this.redis.call("LOCK.RELEASE", this.key, this.owner, "FENCE", this.fence);
    this.fence = 0;
    await this.#close();
    if (left < 0) throw new LockLostError(`the lock ${this.key} was lost before it was released`);
  }

  /** Lets the lease last so many milliseconds from now on, at least. Throws LockLostError. */
  async renew(lease = this.lease) {
    const [fence] = await (this.#own ?? this.redis).call("LOCK.RENEW", 1, this.key, this.owner, "PX", lease);
    if (!this.fence || fence !== this.fence) throw new LockLostError(`the lock ${this.key} is lost`);
  }

  /** Adds a guard to a transaction of `multi()`: unless this grant is still held, nothing of it is done and exec() gives null. */
  guard(transaction) {
    return transaction.call("LOCK.GUARD", this.key, this.owner, "FENCE", this.fence);
  }

  /**
   * Runs `work(signal)` under the lock, which is renewed three times in a lease. The signal aborts when the lock is lost, or
   * when nothing was heard of the server for a lease; whether the work stops then is its own matter.
   */
  async using(work, options = {}) {
    if (!(await this.acquire(options))) throw new Error(`the lock ${this.key} is held by another`);
    const lost = new AbortController();
    let renewed = performance.now();
    const timer = setInterval(async () => {
      const asked = performance.now();
      try {
        if (asked - renewed >= this.lease) throw new LockLostError(`the lock ${this.key} could not be renewed`);
        await this.renew();
        renewed = asked;
      } catch (error) {
        if (error instanceof LockLostError && this.fence) lost.abort(error);
      }
    }, this.lease / 3);
    let result;
    try {
      result = await work(AbortSignal.any([lost.signal, ...(options.signal ? [options.signal] : [])]));
    } finally {
      clearInterval(timer);
      // An error of the work's own tells more than one of the release.
      await this.release().catch((error) => lost.abort(error));
    }
    lost.signal.throwIfAborted();
    return result;
  }

  async #ask(connection, ...more) {
    const session = this.grace ? ["SESSION", "GRACE", this.grace] : [];
    const [fence] = await connection.call("LOCK.ACQUIRE", this.key, this.owner, "PX", this.lease, ...session, ...more);
    this.fence = fence;
    return fence !== 0;
  }

  /** A connection of its own: for a wait, and for a session as long as the lock is held. */
  #connection() {
    if (!this.#own) {
      this.#own = this.redis.duplicate({ commandTimeout: undefined, socketTimeout: undefined });
      // What goes wrong is told by the commands.
      this.#own.on("error", () => {});
    }
    return this.#own;
  }

  /** Closes it, and waits until the server has seen that: nothing is granted to it afterwards. */
  async #close() {
    const own = this.#own;
    this.#own = null;
    if (!own || own.status === "end") return;
    const ended = new Promise((resolve) => own.once("end", resolve));
    own.disconnect();
    // Between two attempts to connect nothing is open, and no event comes.
    if (own.status !== "reconnecting") await ended;
  }
}
