<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/** The grant has ended: by its lease, its session, or somebody's hand. */
final class LockLost extends LockException
{
}
