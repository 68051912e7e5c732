<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/** What this package throws itself; errors of the connection and of the server are phpredis's. */
class LockException extends \RuntimeException
{
    private static ?\WeakMap $beside = null;

    /** The error of a release that failed after a callback of withLock or withPermits had thrown $error; null: it did not fail. */
    public static function beside(\Throwable $error): ?\Throwable
    {
        return self::$beside[$error] ?? null;
    }

    /** @internal */
    public static function put(\Throwable $failed, \Throwable $beside): void
    {
        self::$beside ??= new \WeakMap();
        self::$beside[$beside] = $failed;
    }
}
