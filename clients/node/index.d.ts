/** Locks, semaphores and rate limits of a Latchkey server. Times are milliseconds. */

/** What is needed of a client: ioredis' `Redis` (also of sentinels) and `Cluster`, node-redis' client, or an object of your own. */
export type Client =
  | { call(command: string, ...words: any[]): Promise<unknown>; duplicate(...options: any[]): any }
  | { sendCommand(words: any, ...more: any[]): Promise<any>; duplicate(...options: any[]): any }
  | { send(words: string[]): Promise<unknown>; own(): Connection };

/** A connection that nobody else uses, for a wait or a session. */
export interface Connection {
  send(words: string[]): Promise<unknown>;
  close(): Promise<void>;
}

export interface GrantOptions {
  /** After so many milliseconds it ends, unless it is renewed. Default: 30,000. */
  lease?: number;
  /** How long to wait in the server's queue. 0: not at all. Default: for ever. */
  wait?: number;
  /** A session: it ends so many milliseconds after its connection has closed; the lease counts from the last request over it. */
  grace?: number | null;
  /** Who asks. Whoever asks with the same name gets the same grant. Default: a random name. */
  owner?: string;
  /** Ends the wait, and leaves nothing held and nobody waiting. */
  signal?: AbortSignal;
}

export interface LockOptions extends GrantOptions {
  /** For reading, beside other readers. */
  shared?: boolean;
}

export interface PermitsOptions extends GrantOptions {
  /** How many permits, which are granted together. Default: 1. */
  count?: number;
}

export interface Rate {
  /** So many actions ... */
  count: number;
  /** ... in so many seconds ... */
  period: number;
  /** ... and so many more at once. Default: 0. */
  burst?: number;
  /** How many are asked for. Default: 1; 0 only looks. */
  quantity?: number;
}

export interface Limit {
  allowed: boolean;
  limit: number;
  remaining: number;
  /** Seconds; null if it was allowed, or never will be. */
  retryAfter: number | null;
  /** Seconds until all actions are left again. */
  resetAfter: number;
}

export class Locks {
  constructor(client: Client);
  /** Takes a lock, or several at once. Rejects with NotGrantedError, the signal's reason, or the client's errors. */
  acquire(keys: string | string[], options?: LockOptions): Promise<Lock>;
  /** Takes permits of a semaphore of which `limit` are held at most. */
  permits(key: string, limit: number, options?: PermitsOptions): Promise<Permits>;
  /** Runs `work` under the lock, which is renewed. The signal aborts when the lock is lost; whether the work stops then is its own
   * matter. Rejects with the work's own error, whose `lockError` is that of the release, else with LockLostError. */
  withLock<T>(keys: string | string[], options: LockOptions, work: (lock: Lock, signal: AbortSignal) => T | Promise<T>): Promise<T>;
  withPermits<T>(key: string, limit: number, options: PermitsOptions, work: (permits: Permits, signal: AbortSignal) => T | Promise<T>): Promise<T>;
  /** Whether actions are allowed, which are counted then. */
  throttle(key: string, rate: Rate): Promise<Limit>;
}

declare class Grant {
  readonly key: string;
  readonly owner: string;
  /** The number of this grant. Hand it to whatever is protected. */
  readonly fence: number;
  readonly lease: number;
  readonly grace: number | null;
  /** Milliseconds for which this is held at least, counted from before the request by a clock that nobody sets. */
  left(): number;
  /** Lets the lease last so long from now on, at least. Rejects with LockLostError. */
  renew(lease?: number): Promise<void>;
  /** Gives it back; with `keep` nobody gets the lock for so long. Rejects with LockLostError if it had ended before. */
  release(options?: { keep?: number }): Promise<void>;
  /** Binds the session to its connection, a new one if that broke; whether there was something to bind. */
  attach(): Promise<boolean>;
  /** Renews three times in a lease, or every so many milliseconds, until the release. The signal aborts, with a LockLostError, when
   * it is lost, or when nothing was heard of the server until the lease was over. */
  watch(every?: number): AbortSignal;
  /** `await using`: releases it. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** A lock that is held, several of them, or a reader's part of one. */
export class Lock extends Grant {
  readonly keys: string[];
  readonly shared: boolean;
  /** Whether the server still says so. */
  held(): Promise<boolean>;
  /** Adds guards to a transaction of `multi()`: unless this grant is held then, it does nothing. */
  guard<T>(transaction: T): T;
}

/** Permits that are held. */
export class Permits extends Grant {
  readonly limit: number;
  readonly count: number;
  readonly permits: string[];
  /** How many were free after the grant. */
  readonly free: number;
}

/** Others hold it, and the time to wait is over. */
export class NotGrantedError extends Error {
  /** Who; null where others only stand in line before, and for permits. */
  readonly holder: string | null;
}

/** The grant has ended: by its lease, its session, or somebody's hand. */
export class LockLostError extends Error {}
