import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import latchkey.locks.LatchkeyLock;
import latchkey.locks.LockLostException;
import latchkey.locks.Locks;
import latchkey.locks.Options;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;

/** The package's java.util.concurrent.locks.Lock: what its table of cases does not have. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
@Timeout(60)
class LatchkeyLockTest {
    private Server server;
    private RedisClient client;

    RedisProtocol protocol() {
        return RedisProtocol.RESP2;
    }

    private JedisClientConfig config(int timeoutMs) {
        return DefaultJedisClientConfig.builder().protocol(protocol()).timeoutMillis(timeoutMs).build();
    }

    private RedisClient connect(int timeoutMs) {
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setMaxTotal(40);
        pool.setTestOnBorrow(true);
        return RedisClient.builder().hostAndPort("127.0.0.1", server.port).clientConfig(config(timeoutMs)).poolConfig(pool).build();
    }

    private LatchkeyLock lock() {
        return new LatchkeyLock(new Locks(client), "lock", Options.DEFAULT);
    }

    private int waiters() {
        CommandArguments waiters = new CommandArguments(() -> "LOCK.WAITERS".getBytes()).add("lock");
        return ((List<?>) client.executeCommand(waiters)).size();
    }

    @BeforeAll
    void start() throws Exception {
        server = new Server();
        client = connect(30_000);
        Assumptions.assumeFalse(client.configGet("redis-version").isEmpty(), "the server is another one");
    }

    @AfterAll
    void stop() throws Exception {
        client.close();
        server.close();
    }

    @BeforeEach
    void clear() {
        client.flushAll();
    }

    @Test
    void aLockIsOneThreadsAtATimeAndTakenAgainByIt() throws Exception {
        LatchkeyLock lock = lock();
        lock.lock();
        long fence = lock.grant().fence();
        assertTrue(lock.tryLock());
        assertEquals(fence, lock.grant().fence());
        assertFalse(Crowd.elsewhere(lock::tryLock));
        assertFalse(Crowd.elsewhere(() -> lock.tryLock(20, TimeUnit.MILLISECONDS)));
        assertFalse(Crowd.elsewhere(() -> {
            assertThrows(IllegalMonitorStateException.class, lock::grant);
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            return false;
        }));
        lock.unlock();
        assertFalse(Crowd.elsewhere(lock::tryLock));
        lock.grant().renew(Duration.ofHours(1));
        assertTrue(client.pttl("lock") > 3_000_000);
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertFalse(client.exists("lock"));
        assertThrows(UnsupportedOperationException.class, lock::newCondition);

        // Lost in between: it is not taken again, though it is free.
        lock.lock();
        client.del("lock");
        assertThrows(LockLostException.class, lock::tryLock);
        assertFalse(client.exists("lock"));
    }

    @Test
    void threadsCountTogether() throws Exception {
        LatchkeyLock lock = lock();
        Crowd crowd = new Crowd();
        int[] unguarded = {0};
        Crowd.sideBySide(12, number -> {
            for (int round = 0; round < 20; round++) {
                lock.lock();
                crowd.enter();
                int seen = unguarded[0];
                Thread.yield();
                unguarded[0] = seen + 1;
                crowd.leave();
                lock.unlock();
            }
        });
        assertEquals(List.of(240, 240, 1), List.of(unguarded[0], crowd.entered.get(), crowd.most.get()));
    }

    @Test
    void aWaitLastsLongerThanTheSocketsTimeout() throws Exception {
        lock().lock();
        try (RedisClient impatient = connect(1000)) {
            LatchkeyLock lock = new LatchkeyLock(new Locks(impatient), "lock", Options.DEFAULT);
            long started = System.nanoTime();
            assertFalse(lock.tryLock(1200, TimeUnit.MILLISECONDS));
            assertTrue(System.nanoTime() - started >= TimeUnit.MILLISECONDS.toNanos(1200));
        }
    }

    @Test
    void anInterruptEndsTheWait() throws Exception {
        LatchkeyLock lock = lock();
        lock.lock();
        boolean[] interrupted = {false};
        Thread waiting = new Thread(() -> {
            try {
                lock.lockInterruptibly();
            } catch (InterruptedException expected) {
                interrupted[0] = true;
            }
        });
        waiting.start();
        Crowd.until(() -> waiters() == 1);
        waiting.interrupt();
        waiting.join(20_000);
        assertTrue(interrupted[0]);
        Crowd.until(() -> waiters() == 0);
        lock.unlock();

        // One that comes together with the grant leaves nothing held and nobody waiting.
        for (int round = 0; round < 100; round++) {
            lock.lock();
            Thread worker = new Thread(() -> {
                try {
                    lock.lockInterruptibly();
                    lock.unlock();
                } catch (InterruptedException expected) {
                    // What the server granted meanwhile is given back.
                }
            });
            worker.start();
            Crowd.until(() -> waiters() == 1);
            worker.interrupt();
            for (long end = System.nanoTime() + ThreadLocalRandom.current().nextInt(300_000); System.nanoTime() < end; ) {
                Thread.onSpinWait();
            }
            lock.unlock();
            worker.join(20_000);
            assertFalse(worker.isAlive());
            Crowd.until(() -> waiters() == 0 && !client.exists("lock"));
        }
    }

    @Test
    void aClientThatHasLostALockGoesOn() {
        // By RESP3 it is told by a message that it did not ask for.
        LatchkeyLock lock = lock();
        for (int round = 0; round < 3; round++) {
            lock.lock();
            client.del("lock");
            for (int number = 0; number < 5; number++) {
                client.set("k", Integer.toString(number));
                assertEquals(Integer.toString(number), client.get("k"));
            }
            assertThrows(LockLostException.class, lock::unlock);
        }
    }
}
