<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/** The answer to a rate. $retryAfter is null if it was allowed, or never will be. */
final class Limit
{
    public function __construct(
        public readonly bool $allowed,
        public readonly int $limit,
        public readonly int $remaining,
        public readonly ?int $retryAfter,
        public readonly int $resetAfter,
    ) {
    }
}
