import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import latchkey.locks.LockLostException;
import latchkey.locks.Locks;
import latchkey.locks.Options;
import latchkey.locks.shedlock.LatchkeyLockProvider;
import latchkey.locks.spring.LatchkeyLockRegistry;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import net.javacrumbs.shedlock.core.LockingTaskExecutor;
import net.javacrumbs.shedlock.core.SimpleLock;
import redis.clients.jedis.RedisClient;

/** The locks of ShedLock and of Spring Integration over latchkey-locks, through what their users call. */
public final class Adapters {
    private final RedisClient client = RedisClient.create(System.getenv("REDIS_URL"));
    private final LatchkeyLockProvider shedlock = new LatchkeyLockProvider(new Locks(client));
    private final LockingTaskExecutor tasks = new DefaultLockingTaskExecutor(shedlock);
    private final LatchkeyLockRegistry spring = new LatchkeyLockRegistry(new Locks(client), "app", Options.DEFAULT);
    private final LatchkeyLockRegistry otherSpring = new LatchkeyLockRegistry(new Locks(client), "app", Options.DEFAULT);

    interface Check {
        void run() throws Throwable;
    }

    interface Work<T> {
        T run() throws Throwable;
    }

    private static void check(boolean holds, Object found) {
        if (!holds) {
            throw new AssertionError(found);
        }
    }

    private static LockConfiguration task(String name, long mostMs, long leastMs) {
        return new LockConfiguration(Instant.now(), name, Duration.ofMillis(mostMs), Duration.ofMillis(leastMs));
    }

    private static <T> T elsewhere(Work<T> work) throws Throwable {
        CompletableFuture<T> done = new CompletableFuture<>();
        new Thread(() -> {
            try {
                done.complete(work.run());
            } catch (Throwable failed) {
                done.completeExceptionally(failed);
            }
        }).start();
        try {
            return done.get();
        } catch (ExecutionException failed) {
            throw failed.getCause();
        }
    }

    private Map<String, Check> checks() {
        Map<String, Check> checks = new LinkedHashMap<>();
        checks.put("ShedLock: a task runs once at a time, and its name is free afterwards", () -> {
            tasks.executeWithLock((LockingTaskExecutor.Task) () -> {
                check(client.exists("job-lock:t1"), "nothing is held");
                check(elsewhere(() -> shedlock.lock(task("t1", 60_000, 0)).isEmpty()), "it is held twice");
                check(!elsewhere(() -> tasks.executeWithLock(() -> "ran", task("t1", 60_000, 0)).wasExecuted()), "it ran twice");
            }, task("t1", 60_000, 0));
            check(!client.exists("job-lock:t1"), "it is held still");
        });
        checks.put("ShedLock: lockAtLeastFor keeps the lock after the task", () -> {
            check(tasks.executeWithLock(() -> "ran", task("t2", 60_000, 50_000)).wasExecuted(), "it did not run");
            check(client.pttl("job-lock:t2") > 40_000 && client.pttl("job-lock:t2") <= 50_000, client.pttl("job-lock:t2"));
            check(shedlock.lock(task("t2", 60_000, 0)).isEmpty(), "it was not kept");
        });
        checks.put("ShedLock: lockAtMostFor ends it, and a late unlock frees nobody else's", () -> {
            SimpleLock late = shedlock.lock(task("t3", 20, 0)).orElseThrow();
            Optional<SimpleLock> next = Optional.empty();
            for (long end = System.nanoTime() + 20_000_000_000L; next.isEmpty() && System.nanoTime() < end; Thread.sleep(5)) {
                next = shedlock.lock(task("t3", 60_000, 0));
            }
            check(next.isPresent(), "its lease did not end");
            late.unlock();
            check(client.exists("job-lock:t3"), "the next one's lock is gone");
        });
        checks.put("ShedLock: a lock is extended, and one that was lost is not", () -> {
            tasks.executeWithLock((LockingTaskExecutor.Task) () -> {
                LockExtender.extendActiveLock(Duration.ofSeconds(200), Duration.ZERO);
                check(client.pttl("job-lock:t4") > 190_000, client.pttl("job-lock:t4"));
            }, task("t4", 10_000, 0));
            SimpleLock lost = shedlock.lock(task("t4", 60_000, 0)).orElseThrow();
            client.del("job-lock:t4");
            check(lost.extend(Duration.ofSeconds(10), Duration.ZERO).isEmpty(), "it was extended");
        });
        checks.put("Spring: registries of two processes exclude each other", () -> spring.executeLocked("s1", () -> {
            check(elsewhere(() -> !otherSpring.obtain("s1").tryLock()), "it is held twice");
            check(elsewhere(() -> !spring.obtain("s1").tryLock()), "two threads hold it");
            try {
                otherSpring.executeLocked("s1", Duration.ofMillis(20), () -> check(false, "it ran"));
                check(false, "it did not end");
            } catch (TimeoutException expected) {
                check(client.exists("app:s1"), "nothing is held");
            }
        }));
        checks.put("Spring: a thread takes its lock again, by the same key", () -> {
            spring.executeLocked("s2", () -> {
                spring.executeLocked("s2", () -> { });
                check(client.exists("app:s2"), "the inner end freed it");
            });
            check(!client.exists("app:s2"), "it is held still");
        });
        checks.put("Spring: a lock is renewed, and one that was lost tells so", () -> {
            spring.obtain("s3").lock();
            spring.renewLock("s3", Duration.ofSeconds(200));
            check(client.pttl("app:s3") > 190_000, client.pttl("app:s3"));
            client.del("app:s3");
            try {
                spring.renewLock("s3");
                check(false, "it was renewed");
            } catch (LockLostException expected) {
                spring.obtain("s4").lock();
                spring.obtain("s4").unlock();
            }
        });
        return checks;
    }

    public static void main(String[] args) {
        Adapters adapters = new Adapters();
        int failed = 0;
        Map<String, Check> checks = adapters.checks();
        for (Map.Entry<String, Check> check : checks.entrySet()) {
            try {
                check.getValue().run();
            } catch (Throwable error) {
                failed++;
                System.out.println("FAILED " + check.getKey() + ": " + error);
            }
        }
        System.out.println("java, adapters: " + (checks.size() - failed) + " passed, " + failed + " failed");
        System.exit(failed > 0 ? 1 : 0);
    }
}
