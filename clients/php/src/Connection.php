<?php

declare(strict_types=1);

namespace Latchkey\Locks;

/**
 * The seam to phpredis. A client has one connection to a server, which it replaces by itself when it is found broken before a
 * request; it never sends a request twice.
 *
 * @internal
 */
final class Connection
{
    /** How much longer than the server a client waits for the reply. */
    private const PATIENCE = 5;

    private \Redis|\RedisCluster|null $client = null;

    public function __construct(private readonly \Redis|\RedisCluster|\Closure $given)
    {
    }

    /** The reply to a request, for which the server may take so many seconds. Errors of the server are thrown, too. */
    public function ask(string $key, array $request, float $seconds = 0): mixed
    {
        $this->client ??= $this->given instanceof \Closure ? ($this->given)() : $this->given;
        try {
            return $this->send($this->client, $key, array_map('strval', $request), $seconds);
        } catch (\RedisException | \RedisClusterException $error) {
            if (!self::isReply($error) || str_starts_with($error->getMessage(), 'READONLY ')) {
                $this->client = null;
            }
            throw $error;
        }
    }

    /** The server has answered, and did nothing: its errors begin with a code, those of a connection do not. */
    public static function isReply(\Throwable $error): bool
    {
        return preg_match('/^[A-Z][A-Z0-9]* /', $error->getMessage()) === 1;
    }

    private function send(\Redis|\RedisCluster $client, string $key, array $words, float $seconds): mixed
    {
        if ($client->getMode() !== \Redis::ATOMIC) {
            throw new \LogicException('A lock cannot be used within a transaction or a pipeline, but for its guard');
        }
        $client->clearLastError();
        if ($client instanceof \RedisCluster) {
            $reply = $client->rawCommand($key, ...$words);
        } else {
            $timeout = $client->getOption(\Redis::OPT_READ_TIMEOUT);
            $client->setOption(\Redis::OPT_READ_TIMEOUT, $seconds + self::PATIENCE);
            try {
                $reply = $client->rawCommand(...$words);
            } finally {
                // None means PHP's own; for a connection that is open, it would mean no time at all.
                $client->setOption(\Redis::OPT_READ_TIMEOUT, $timeout ?: (float) ini_get('default_socket_timeout'));
            }
        }
        if ($reply === false && $client->getLastError() !== null) {
            throw new \RedisException($client->getLastError());
        }
        return $reply;
    }
}
