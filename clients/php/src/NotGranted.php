<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/** Others hold it, and the time to wait is over. */
final class NotGranted extends LockException
{
    /** @param ?string $holder who; null where others only stand in line before, and for permits */
    public function __construct(string $key, public readonly ?string $holder = null)
    {
        parent::__construct($holder === null ? "$key is not free" : "$key is held by $holder");
    }
}
