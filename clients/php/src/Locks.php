<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/**
 * Locks, semaphores and rate limits of a Latchkey server, through phpredis. Times are seconds, which may be fractions.
 *
 *     $locks = new Locks($redis);
 *     $locks->withLock('jobs', fn (Lock $lock) => $resource->write($value, $lock->fence), lease: 30, wait: 10);
 */
final class Locks
{
    private Connection $connection;

    /**
     * @param \Redis|\RedisCluster|\Closure $client a client, or what gives a connected one: at first, and when it broke or is no
     *     longer that of a primary
     */
    public function __construct(\Redis|\RedisCluster|\Closure $client)
    {
        $this->connection = new Connection($client);
    }

    /**
     * Takes a lock, or several at once.
     *
     * @param string|string[] $keys
     * @param float $lease until it ends unless it is renewed
     * @param ?float $wait how long to wait in the server's queue; 0: it does not wait; null: for ever
     * @param bool $shared for reading, beside other readers
     * @param ?float $grace a session: it ends so long after its connection has closed, and the lease counts from the last request
     *     of this lock
     * @param ?string $owner who asks, a random name if null; whoever asks with the same name gets the same grant
     * @throws NotGranted
     * @throws \RedisException|\RedisClusterException
     */
    public function acquire(
        string|array $keys,
        float $lease = 30,
        ?float $wait = null,
        bool $shared = false,
        ?float $grace = null,
        ?string $owner = null,
    ): Lock {
        $lock = new Lock($this->connection, (array) $keys, $owner, $lease, $grace, $shared);
        $lock->take($wait);
        return $lock;
    }

    /** Takes $count permits of a semaphore of which $limit are held at most. See acquire(). */
    public function permits(
        string $key,
        int $limit,
        int $count = 1,
        float $lease = 30,
        ?float $wait = null,
        ?float $grace = null,
        ?string $owner = null,
    ): Permits {
        $permits = new Permits($this->connection, $key, $owner, $lease, $grace, $limit, $count);
        $permits->take($wait);
        return $permits;
    }

    /**
     * Gives the value of $work, which gets a Lock that is released afterwards. An error of the work's own comes out of it, and
     * LockException::beside() tells of the release's. $options are those of acquire().
     */
    public function withLock(string|array $keys, callable $work, mixed ...$options): mixed
    {
        return $this->acquire($keys, ...$options)->use($work);
    }

    /** The same for permits. */
    public function withPermits(string $key, int $limit, callable $work, mixed ...$options): mixed
    {
        return $this->permits($key, $limit, ...$options)->use($work);
    }

    /** Whether $quantity actions are allowed: $count in $period seconds, and $burst more at once. */
    public function throttle(string $key, int $count, int $period, int $burst = 0, int $quantity = 1): Limit
    {
        $reply = $this->connection->ask($key, ['CL.THROTTLE', $key, $burst, $count, $period, $quantity]);
        [$limited, $limit, $remaining, $retryAfter, $resetAfter] = $reply;
        return new Limit($limited === 0, $limit, $remaining, $retryAfter < 0 ? null : $retryAfter, $resetAfter);
    }
}
