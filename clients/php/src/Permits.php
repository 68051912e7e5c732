<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/** Permits of one request that are held. */
final class Permits extends Grant
{
    /** @var string[] their names */
    public array $permits = [];
    /** How many were free after the grant. */
    public int $free = 0;

    /** @internal */
    public function __construct(
        Connection $connection,
        string $key,
        ?string $owner,
        float $lease,
        ?float $grace,
        private readonly int $limit,
        private readonly int $count,
    ) {
        parent::__construct($connection, $key, $owner, $lease, $grace);
    }

    protected function question(): array
    {
        return ['SEM.ACQUIRE', $this->key, $this->owner, 'LIMIT', $this->limit, 'PX', self::ms($this->lease), 'COUNT', $this->count];
    }

    protected function read(array $reply): array
    {
        [$this->permits, $fence, $this->free] = $reply;
        return [$fence, $this->lease];
    }

    protected function holder(array $reply): ?string
    {
        return null;
    }

    protected function renewals(int $leaseMs): array
    {
        return array_map(fn (string $permit) => [['SEM.RENEW', $this->key, $permit, 'PX', $leaseMs], 1], $this->permits);
    }

    protected function releases(float $keep): array
    {
        return [[['SEM.RELEASE', $this->key, ...$this->permits], count($this->permits)]];
    }

    protected function abandon(): void
    {
        try {
            // Their names are known by asking again.
            [$reply] = $this->twice($this->question());
        } catch (\RedisException | \RedisClusterException) {
            return; // They end with their lease.
        }
        if ($reply[0] !== 0) {
            $this->read($reply);
            parent::abandon();
        }
    }
}
