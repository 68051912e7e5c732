<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/** A lock that is held, several of them, or a reader's part of one. */
final class Lock extends Grant
{
    /** @internal */
    public function __construct(
        Connection $connection,
        private readonly array $keys,
        ?string $owner,
        float $lease,
        ?float $grace,
        private readonly bool $shared,
    ) {
        parent::__construct($connection, $keys[0], $owner, $lease, $grace);
    }

    /** Whether the server still says so. */
    public function held(): bool
    {
        foreach ($this->guards() as $request) {
            if ($this->twice($request)[0] !== 1) {
                return false;
            }
        }
        return true;
    }

    /**
     * Adds guards to the transaction that a client's multi() has begun: unless this lock is held then, it does nothing, and exec()
     * gives false, that of a cluster a false for each command.
     */
    public function guard(\Redis|\RedisCluster $transaction): void
    {
        foreach ($this->guards() as $request) {
            $words = array_map('strval', $request);
            $transaction->rawCommand(...($transaction instanceof \RedisCluster ? [$this->key, ...$words] : $words));
        }
    }

    protected function question(): array
    {
        $request = count($this->keys) === 1
            ? ['LOCK.ACQUIRE', $this->key, $this->owner]
            : ['LOCK.MACQUIRE', count($this->keys), ...$this->keys, $this->owner];
        return [...$request, 'PX', self::ms($this->lease), ...($this->shared ? ['SHARED'] : [])];
    }

    protected function read(array $reply): array
    {
        return [$reply[0], end($reply) / 1000];
    }

    protected function holder(array $reply): ?string
    {
        return $reply[3] === '' ? null : $reply[3];
    }

    protected function renewals(int $leaseMs): array
    {
        $request = ['LOCK.RENEW', count($this->keys), ...$this->keys, $this->owner, 'PX', $leaseMs];
        return [[$request, array_fill(0, count($this->keys), $this->fence)]];
    }

    protected function releases(float $keep): array
    {
        $rest = [...(isset($this->fence) ? ['FENCE', $this->fence] : []), ...($keep > 0 ? ['KEEP', self::ms($keep)] : [])];
        return array_map(fn (string $key) => [['LOCK.RELEASE', $key, $this->owner, ...$rest], 0], $this->keys);
    }

    private function guards(): array
    {
        return array_map(fn (string $key) => ['LOCK.GUARD', $key, $this->owner, 'FENCE', $this->fence], $this->keys);
    }
}
