<?php

// The table of cases by latchkey/locks for PHP: each case over each kind of client. What happens at the same time happens in a child.

declare(strict_types=1);

require getcwd() . '/vendor/autoload.php';

use Latchkey\Locks\LockException;
use Latchkey\Locks\LockLost;
use Latchkey\Locks\Locks;
use Latchkey\Locks\NotGranted;

const HOST = '127.0.0.1';

final class Own extends Exception
{
}

final class Wrong extends Exception
{
}

function connected(string $port): Redis
{
    $redis = new Redis();
    $redis->connect(HOST, (int) $port);
    return $redis;
}

function clientOf(string $over): Redis|RedisCluster|Closure
{
    if ($over === 'impatient') {
        $redis = connected(getenv('PORT'));
        $redis->setOption(Redis::OPT_READ_TIMEOUT, 0.2);
        return $redis;
    }
    return match ($over) {
        'cluster' => new RedisCluster(null, [HOST . ':' . explode(' ', getenv('CLUSTER'))[0]]),
        'sentinel' => fn () => connected((new RedisSentinel(HOST, (int) getenv('SENTINEL')))->getMasterAddrByName('primary')[1]),
        'relay' => connected(getenv('RELAY')),
        default => connected(getenv('PORT')),
    };
}

/** A step that runs in a child, which then does what is asked of its grant. */
final class Child
{
    private mixed $pipe;
    private int $process;

    public function __construct(Closure $run)
    {
        [$this->pipe, $other] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $this->process = pcntl_fork();
        if ($this->process !== 0) {
            return;
        }
        fclose($this->pipe);
        do {
            fwrite($other, json_encode($run(isset($line) ? json_decode($line, true) : null)) . "\n");
        } while ($line = fgets($other));
        // Without its end: the connections are the parent's.
        posix_kill(posix_getpid(), SIGKILL);
    }

    public function result(): ?array
    {
        stream_set_timeout($this->pipe, 20);
        return json_decode((string) fgets($this->pipe), true);
    }

    public function ask(array $step): ?array
    {
        fwrite($this->pipe, json_encode($step) . "\n");
        return $this->result();
    }

    public function end(): void
    {
        posix_kill($this->process, SIGKILL);
        pcntl_waitpid($this->process, $status);
    }
}

/** Runs the steps of a case. */
final class Runner
{
    private Redis|RedisCluster $client;
    private Locks $locks;
    private array $grants = [];
    private array $children = [];

    public function __construct(private string $tag, private string $over)
    {
        $this->open();
    }

    private function open(): void
    {
        $client = clientOf($this->over);
        $this->client = $client instanceof Closure ? $client() : $client;
        $this->locks = new Locks($client);
    }

    public function run(array $step): void
    {
        $child = $this->children[$step['of'] ?? ''] ?? null;
        if ($child !== null && $step['do'] !== 'end') {
            $this->check($step, $child->ask($step) === ['right' => true], 'in a child');
            return;
        }
        $result = $error = null;
        try {
            $result = $this->{'do' . ucfirst($step['do'])}($step);
        } catch (NotGranted $result) {
            $error = 'not granted';
        } catch (LockLost $result) {
            $error = 'lost';
        } catch (Own $result) {
            $error = 'own';
        } catch (RedisException | RedisClusterException $result) {
            $error = preg_match('/^[A-Z]+ /', $result->getMessage()) ? 'server' : $result->getMessage();
        }
        $this->check($step, $error === ($step['error'] ?? null), [$error, $result instanceof Throwable ? $result->getMessage() : null]);
        if (array_key_exists('holder', $step)) {
            $holder = $step['holder'] === null ? null : $this->grants[$step['holder']]->owner;
            $this->check($step, $result->holder === $holder, $result->holder);
        }
        if (isset($step['besides'])) {
            $this->check($step, LockException::beside($result) instanceof LockLost, 'nothing');
        }
        if ($error === null && in_array($step['do'], ['acquire', 'permits'], true)) {
            $this->granted($step, $result);
        }
    }

    public function end(): void
    {
        array_map(fn (Child $child) => $child->end(), $this->children);
    }

    private function granted(array $step, object $grant): void
    {
        $this->check($step, !isset($step['above']) || $grant->fence > $this->grants[$step['above']]->fence, $grant->fence);
        $this->check($step, !isset($step['same']) || $grant->fence === $this->grants[$step['same']]->fence, $grant->fence);
        if (isset($step['free'])) {
            $this->check($step, [$grant->free, count($grant->permits)] === [$step['free'], $step['count'] ?? 1], $grant->free);
        }
        $this->grants[$step['as']] = $grant;
    }

    private function check(array $step, bool $holds, mixed $told): void
    {
        if (!$holds) {
            throw new Wrong(json_encode($step) . ': ' . json_encode($told));
        }
    }

    private function until(array $step, Closure $holds): void
    {
        for ($end = hrtime(true) + 20e9; !$holds(); usleep(5000)) {
            $this->check($step, hrtime(true) < $end, 'in vain');
        }
    }

    private function options(array $step): array
    {
        $options = [];
        foreach (['lease', 'wait', 'grace'] as $name) {
            if (isset($step[$name])) {
                $options[$name] = $step[$name] / 1000;
            }
        }
        return isset($step['owner']) ? [...$options, 'owner' => $this->grants[$step['owner']]->owner] : $options;
    }

    private function keys(array $step): array
    {
        return array_map(fn (string $key) => $this->tag . $key, $step['keys']);
    }

    private function doAcquire(array $step): object
    {
        return $this->locks->acquire($this->keys($step), ...$this->options($step), shared: $step['shared'] ?? false);
    }

    private function doPermits(array $step): object
    {
        return $this->locks->permits($this->tag . $step['key'], $step['limit'], $step['count'] ?? 1, ...$this->options($step));
    }

    private function doBegin(array $step): void
    {
        $as = $step['step']['as'];
        $this->children[$as] = new Child(function (?array $asked) use ($step, $as): array {
            try {
                if ($asked === null) {
                    $this->children = [];
                    $this->open();
                }
                $this->run($asked ?? $step['step']);
                return $asked === null ? ['owner' => $this->grants[$as]->owner, 'fence' => $this->grants[$as]->fence] : ['right' => true];
            } catch (Throwable $error) {
                return ['wrong' => $error->getMessage()];
            }
        });
    }

    private function doEnd(array $step): void
    {
        $result = $this->children[$step['of']]->result();
        $this->check($step, isset($result['owner']), $result);
        $this->grants[$step['of']] = (object) $result;
    }

    private function doRelease(array $step): void
    {
        $this->grants[$step['of']]->release(($step['keep'] ?? 0) / 1000);
    }

    private function doRenew(array $step): void
    {
        $this->grants[$step['of']]->renew(isset($step['lease']) ? $step['lease'] / 1000 : null);
    }

    private function doHeld(array $step): void
    {
        $this->check($step, $this->grants[$step['of']]->held() === $step['is'], 'held');
    }

    private function doAttach(array $step): void
    {
        $this->check($step, $this->grants[$step['of']]->attach() === $step['is'], 'attached');
    }

    private function doLeft(array $step): void
    {
        $left = $this->grants[$step['of']]->left() * 1000;
        $this->check($step, $left > ($step['above'] ?? -1) && $left < ($step['below'] ?? 1e9), $left);
    }

    private function doGuarded(array $step): void
    {
        $this->client->multi();
        $this->grants[$step['of']]->guard($this->client);
        $this->client->set($this->tag . $step['key'], $step['value']);
        $replies = $this->client->exec();
        $this->check($step, in_array($replies, [[1, true], [1, 1, true]], true) === $step['is'], $replies);
        $this->check($step, $step['is'] || $replies === false || array_unique($replies) === [false], $replies);
    }

    private array $watched = [];

    private function doWatch(array $step): void
    {
        $this->watched[$step['of']] = false;
        $this->watch();
    }

    /** Whatever takes time watches. */
    private function watch(): void
    {
        foreach (array_keys($this->watched, false, true) as $name) {
            try {
                $this->grants[$name]->watch();
            } catch (LockLost) {
                $this->watched[$name] = true;
            }
        }
    }

    private function doTold(array $step): void
    {
        $isTold = function () use ($step): bool {
            $this->watch();
            return $this->watched[$step['of']];
        };
        $step['is'] ? $this->until($step, $isTold) : $this->check($step, !$isTold(), 'told');
    }

    private function doPause(array $step): void
    {
        for ($end = hrtime(true) + $step['ms'] * 1e6; hrtime(true) < $end; usleep(5000)) {
            $this->watch();
        }
    }

    private function doScope(array $step): void
    {
        $this->locks->withLock($this->keys($step), function (object $lock) use ($step): void {
            $this->grants[$step['as']] = $lock;
            array_map($this->run(...), $step['inside']);
            if ($step['raise'] ?? false) {
                throw new Own();
            }
        }, ...$this->options($step));
    }

    private function doThrottle(array $step): void
    {
        $key = $this->tag . $step['key'];
        $limit = $this->locks->throttle($key, $step['count'], $step['period'], $step['burst'], $step['quantity'] ?? 1);
        $this->check($step, [$limit->allowed, $limit->remaining] === [$step['allowed'], $step['remaining']], $limit);
    }

    private function doKill(array $step): void
    {
        connected(getenv('PORT'))->rawCommand('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    }

    private function doCommand(array $step): void
    {
        $words = array_map(fn (string $word) => $word[0] === '$' ? $this->tag . substr($word, 1) : $word, $step['words']);
        $reply = null;
        $isRight = function () use ($step, $words, &$reply): bool {
            $reply = $this->client->rawCommand(...($this->client instanceof RedisCluster ? [$this->tag, ...$words] : $words));
            $reply = isset($step['item']) ? $reply[$step['item']] : $reply;
            $reply = isset($step['count']) ? count($reply) : $reply;
            // As phpredis has them.
            $reply = $reply === true ? 'OK' : ($reply === false ? null : $reply);
            return isset($step['above']) ? $reply > $step['above'] : $reply === ($step['count'] ?? $step['reply'] ?? null);
        };
        ($step['until'] ?? false) ? $this->until($step, $isRight) : $this->check($step, $isRight(), $reply);
    }
}

$passed = $failed = $skipped = 0;
foreach (json_decode(file_get_contents($argv[1]), true) as $at => $case) {
    foreach ($case['over'] ?? ['server', 'cluster', 'sentinel'] as $over) {
        // Nothing cancels a wait in PHP.
        if ($over === 'sentinel' && !getenv('SENTINEL') || isset($case['needs'])) {
            $skipped++;
            continue;
        }
        $runner = new Runner("{{$at}$over" . hrtime(true) . '}', $over);
        try {
            array_map($runner->run(...), $case['steps']);
            $passed++;
        } catch (Throwable $error) {
            $failed++;
            echo "FAILED $case[name], over $over: ", get_class($error), ': ', $error->getMessage(), "\n";
        }
        $runner->end();
    }
}
echo 'php, phpredis ', phpversion('redis'), ": $passed passed, $failed failed, $skipped skipped\n";
exit($failed > 0 ? 1 : 0);
