<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/** What a lock and permits have in common: one grant, which ends with release(). */
abstract class Grant
{
    /**
     * Bounds one request, so that a server that vanished is noticed. Each further one begins at the end of the queue. It is below
     * PHP's default_socket_timeout, as phpredis has no way to let a cluster's client wait longer.
     */
    private const LONGEST_WAIT = 30;
    /** How many connections may break one after the other, before an acquisition gives up. */
    private const TRIES = 3;

    /** The number of this grant. Hand it to whatever is protected. */
    public readonly int $fence;
    public readonly string $owner;
    private float $until = 0;

    public function __construct(
        private readonly Connection $connection,
        protected readonly string $key,
        ?string $owner,
        protected readonly float $lease,
        private readonly ?float $grace,
    ) {
        $this->owner = $owner ?? bin2hex(random_bytes(16));
    }

    /** Seconds for which this is held at least. It counts from before the request, by a clock that nobody sets. */
    public function left(): float
    {
        return max(0, $this->until - self::now());
    }

    /** Lets the lease last so long from now on, at least; null: as long as at first. */
    public function renew(?float $lease = null): void
    {
        $lease ??= $this->lease;
        $began = self::now();
        foreach ($this->renewals(self::ms($lease)) as [$request, $expected]) {
            if ($this->twice($request)[0] !== $expected) {
                throw $this->lost();
            }
        }
        $this->until = max($this->until, $began + $lease);
    }

    /** Gives it back. $keep: nobody gets the lock for so long. */
    public function release(float $keep = 0): void
    {
        $isLost = false;
        $this->until = 0;
        foreach ($this->releases($keep) as [$request, $least]) {
            // Where it was repeated, the first may have done it, and what the second says of a loss means nothing.
            [$reply, $isRepeated] = $this->twice($request);
            $isLost = $isLost || !$isRepeated && $reply < $least;
        }
        if ($isLost) {
            throw $this->lost();
        }
    }

    /** Binds the session to the connection, which is a new one if that broke; whether there was something to bind. */
    public function attach(): bool
    {
        return $this->twice(['LOCK.ATTACH', $this->owner])[0] > 0;
    }

    /**
     * Renews if a third of the lease is over, and does nothing else: PHP has no second thread, so call it as often as the work comes
     * by. LockLost: it has ended, or nothing was heard of the server until the lease was over.
     */
    public function watch(): void
    {
        if ($this->left() > $this->lease * 2 / 3) {
            return;
        }
        try {
            $this->renew();
        } catch (\RedisException | \RedisClusterException $error) {
            if ($this->left() <= 0) {
                throw $this->lost($error);
            }
        }
    }

    /** @internal See Locks::withLock(). */
    public function use(callable $work): mixed
    {
        try {
            $result = $work($this);
        } catch (\Throwable $error) {
            try {
                $this->release();
            } catch (LockException | \RedisException | \RedisClusterException $failed) {
                LockException::put($failed, $error);
            }
            throw $error;
        }
        $this->release();
        return $result;
    }

    /** @internal See Locks::acquire(). */
    public function take(?float $wait): void
    {
        $isSettled = false;
        try {
            $this->acquire($wait);
            $isSettled = true;
        } catch (NotGranted $refused) {
            $isSettled = true;
            throw $refused;
        } catch (\RedisException | \RedisClusterException $error) {
            $isSettled = Connection::isReply($error);
            throw $error;
        } finally {
            // The connection broke, or a signal's handler threw: nobody will release what may have been granted.
            if (!$isSettled) {
                $this->abandon();
            }
        }
    }

    abstract protected function question(): array;

    /** The fence of a grant, and the seconds that are left of it. */
    abstract protected function read(array $reply): array;

    abstract protected function holder(array $reply): ?string;

    abstract protected function renewals(int $leaseMs): array;

    abstract protected function releases(float $keep): array;

    /** Gives back what may have been granted although nobody got to know: without a fence, as that is unknown too. */
    protected function abandon(): void
    {
        try {
            foreach ($this->releases(0) as [$request]) {
                $this->twice($request);
            }
        } catch (\RedisException | \RedisClusterException) {
            // It ends with its lease.
        }
    }

    /** Asks again if the connection breaks: requests of locks may be repeated. Gives the reply, and whether it is the second. */
    protected function twice(array $request): array
    {
        try {
            return [$this->ask($request), false];
        } catch (\RedisException | \RedisClusterException $error) {
            if (Connection::isReply($error)) {
                throw $error;
            }
            return [$this->ask($request), true];
        }
    }

    /** Rounded up: a wait is no shorter than it was told, and no lease is none. */
    protected static function ms(float $seconds): int
    {
        return max(1, (int) ceil($seconds * 1000));
    }

    private function acquire(?float $wait): void
    {
        $request = $this->question();
        if ($this->grace !== null) {
            array_push($request, 'SESSION', 'GRACE', self::ms($this->grace));
        }
        $end = $wait === null ? INF : self::now() + $wait;
        $block = $broken = 0;
        while (true) {
            $began = self::now();
            try {
                $reply = $this->ask($block > 0 ? [...$request, 'BLOCK', self::ms($block)] : $request, $block);
            } catch (\RedisException | \RedisClusterException $error) {
                // It may have been granted. The same owner that asks again finds its grant, or stands in the queue anew.
                if (Connection::isReply($error) || ++$broken === self::TRIES) {
                    throw $error;
                }
                $block = 0;
                continue;
            }
            $broken = 0;
            $isGranted = $reply[0] !== 0;
            if ($isGranted && self::now() - $began <= $this->lease / 10) {
                [$this->fence, $left] = $this->read($reply);
                $this->until = $began + $left;
                return;
            }
            // A lease that began in a long wait is measured by asking again, which gets the same grant.
            $block = $isGranted ? 0 : min(self::LONGEST_WAIT, $end - self::now());
            if (!$isGranted && $block <= 0) {
                throw new NotGranted($this->key, $this->holder($reply));
            }
        }
    }

    private function ask(array $request, float $seconds = 0): mixed
    {
        // A session ends with its connection, which the client may have replaced unseen.
        if ($this->grace !== null && isset($this->fence) && $request[0] !== 'LOCK.ATTACH') {
            $this->connection->ask($this->key, ['LOCK.ATTACH', $this->owner]);
        }
        return $this->connection->ask($this->key, $request, $seconds);
    }

    private function lost(?\Throwable $cause = null): LockLost
    {
        $this->until = 0;
        return new LockLost("$this->key is no longer held by $this->owner", 0, $cause);
    }

    private static function now(): float
    {
        return hrtime(true) / 1e9;
    }
}
