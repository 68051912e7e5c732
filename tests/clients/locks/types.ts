// Only compiled: what the types of latchkey-locks accept.
import { Cluster, Redis } from "ioredis";
import { createClient } from "redis";
import { LockLostError, Locks } from "latchkey-locks";

export async function accepted(): Promise<number> {
  const redis = new Redis();
  const locks = new Locks(redis);
  new Locks(createClient());
  new Locks(new Cluster([]));
  new Locks({ send: async () => null, own: () => ({ send: async () => null, close: async () => {} }) });
  await using lock = await locks.acquire(["a", "b"], { wait: 5, shared: true });
  lock.guard(redis.multi()).set("a", "b");
  lock.watch().addEventListener("abort", () => {});
  try {
    await lock.release({ keep: 5 });
  } catch (error) {
    if (error instanceof LockLostError) throw error;
  }
  // @ts-expect-error: not a client
  new Locks(5);
  return locks.withLock("k", {}, (held, signal) => held.fence + (signal.aborted ? 1 : 0));
}
