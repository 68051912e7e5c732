package latchkey.locks;

import java.time.Duration;
import java.util.List;
import java.util.function.Function;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.util.JedisClusterCRC16;
import redis.clients.jedis.util.Pool;

/**
 * Takes locks, permits and rate limits of a Latchkey server through Jedis. It may be used by several threads, as what it gives.
 *
 * <pre>{@code
 * Locks locks = new Locks(client);
 * try (LockGrant lock = locks.acquire("jobs", Options.DEFAULT)) {
 *     resource.write(value, lock.fence());
 * }
 * }</pre>
 */
public final class Locks {
    /** The pool of the server that has a key. */
    final Function<String, Pool<Connection>> poolOf;
    /** Makes the client learn where keys are now. */
    final Runnable refresh;

    public Locks(RedisClient client) {
        this(key -> client.getPool(), () -> {});
    }

    public Locks(RedisSentinelClient client) {
        this(key -> client.getPrimaryNodesConnectionMap().values().iterator().next(), () -> {});
    }

    public Locks(RedisClusterClient client) {
        this(key -> {
            try (Connection any = client.getConnectionFromSlot(JedisClusterCRC16.getSlot(key))) {
                return client.getClusterNodes().get(any.getHostAndPort().toString());
            }
        }, client::refreshClusterTopology);
    }

    /** For other kinds of clients: the pool of the server that has a key, and what makes the client learn where keys are now. */
    public Locks(Function<String, Pool<Connection>> poolOf, Runnable refresh) {
        this.poolOf = poolOf;
        this.refresh = refresh;
    }

    /** Takes a lock. Errors: NotGrantedException, those of Jedis, and InterruptedException, which leaves nothing held. */
    public LockGrant acquire(String key, Options options) throws InterruptedException {
        return acquire(List.of(key), options);
    }

    /** Takes several locks at once, or none. In a cluster their keys need one slot. */
    public LockGrant acquire(List<String> keys, Options options) throws InterruptedException {
        LockGrant lock = new LockGrant(this, keys, options.withSomeOwner());
        lock.take();
        return lock;
    }

    /** Takes permits of a semaphore of which `limit` are held at most. Errors: as of acquire. */
    public Permits permits(String key, int limit, Options options) throws InterruptedException {
        Permits permits = new Permits(this, key, limit, options.withSomeOwner());
        permits.take();
        return permits;
    }

    /** Whether `quantity` actions are allowed, `count` in a period and `burst` more at once; it counts them if they are. */
    public Limit throttle(String key, long count, Duration period, long burst, long quantity) {
        CommandArguments request = Grant.request("CL.THROTTLE", key, burst, count, period.toSeconds(), quantity);
        try (Connection connection = poolOf.apply(key).getResource()) {
            List<?> reply = (List<?>) connection.executeCommand(request);
            Duration retryAfter = (Long) reply.get(3) < 0 ? null : Duration.ofSeconds((Long) reply.get(3));
            Duration resetAfter = Duration.ofSeconds((Long) reply.get(4));
            return new Limit((Long) reply.get(0) == 0, (Long) reply.get(1), (Long) reply.get(2), retryAfter, resetAfter);
        }
    }
}
