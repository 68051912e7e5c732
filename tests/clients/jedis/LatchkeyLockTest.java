import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.ConnectionFactory;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.args.ClientType;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.params.ClientKillParams;
import redis.clients.jedis.providers.ConnectionProvider;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** examples/java/LatchkeyLock.java. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
@Timeout(60)
class LatchkeyLockTest {
    /** What a lock protects: it refuses a fence below the highest that it has seen. */
    private static final class Resource {
        final List<String> values = new ArrayList<>();
        private long highest;

        boolean write(String value, long fence) {
            if (fence < highest) {
                return false;
            }
            highest = fence;
            return values.add(value);
        }
    }

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
        return new LatchkeyLock(client, "lock", 30_000);
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
        long fence = lock.fence();
        assertTrue(lock.tryLock());
        assertEquals(fence, lock.fence());
        assertFalse(Crowd.elsewhere(lock::tryLock));
        assertFalse(Crowd.elsewhere(() -> lock.tryLock(20, TimeUnit.MILLISECONDS)));
        assertFalse(Crowd.elsewhere(() -> {
            assertThrows(IllegalMonitorStateException.class, lock::fence);
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            return false;
        }));
        lock.unlock();
        assertFalse(Crowd.elsewhere(lock::tryLock));
        lock.renew(3_600_000);
        assertTrue(client.pttl("lock") > 3_000_000);
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertFalse(client.exists("lock"));
        assertThrows(UnsupportedOperationException.class, lock::newCondition);

        // Lost in between: it is not taken again, though it is free.
        lock.lock();
        client.del("lock");
        assertThrows(IllegalMonitorStateException.class, lock::tryLock);
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
            LatchkeyLock lock = new LatchkeyLock(impatient, "lock", 30_000);
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
    void aSessionEndsWithItsConnection() throws Exception {
        LatchkeyLock held = new LatchkeyLock(client, "lock", 3_600_000, 20);
        held.lock();
        assertEquals("20 3600000", client.hget("lock", ":session"));
        long fence = held.fence();
        // Its process dies, as far as the server sees.
        try (Jedis other = new Jedis("127.0.0.1", server.port)) {
            other.clientKill(ClientKillParams.clientKillParams().type(ClientType.NORMAL).skipMe(ClientKillParams.SkipMe.YES));
        }
        LatchkeyLock following = lock();
        assertTrue(Crowd.elsewhere(() -> {
            following.lock();
            assertTrue(following.fence() > fence);
            following.unlock();
            return true;
        }));
        assertThrows(IllegalMonitorStateException.class, held::unlock);
    }

    @Test
    void theResourceRefusesAnOwnerWhoseLeaseHasEnded() throws Exception {
        Resource resource = new Resource();
        LatchkeyLock late = new LatchkeyLock(client, "lock", 20);
        LatchkeyLock following = lock();
        late.lock();
        // The holder sleeps longer than its lease; neither the lock nor the server can stop it.
        assertTrue(following.tryLock(20, TimeUnit.SECONDS));
        assertTrue(resource.write("new", following.fence()));
        assertFalse(resource.write("old", late.fence()));
        assertEquals(List.of("new"), resource.values);
        // The server itself compares fences where its own data is protected.
        for (LatchkeyLock lock : List.of(following, late)) {
            try (AbstractTransaction transaction = client.multi()) {
                lock.guard(transaction);
                transaction.set("data", lock == late ? "old" : "new");
                List<Object> replies = transaction.exec();
                assertEquals(lock == late, replies == null);
            }
        }
        assertEquals("new", client.get("data"));
        assertThrows(IllegalMonitorStateException.class, () -> late.renew(1000));
        assertThrows(IllegalMonitorStateException.class, late::unlock);
        following.unlock();
    }

    /** Sockets that break after the server has answered, when they are told to. */
    private static final class LosesReplies extends Socket {
        static final AtomicInteger toLose = new AtomicInteger();

        LosesReplies(int port) throws IOException {
            super(InetAddress.getLoopbackAddress(), port);
        }

        @Override
        public InputStream getInputStream() throws IOException {
            return new FilterInputStream(super.getInputStream()) {
                @Override
                public int read(byte[] into, int from, int length) throws IOException {
                    int count = super.read(into, from, length);
                    if (toLose.getAndDecrement() > 0) {
                        LosesReplies.this.close();
                        throw new IOException("the reply is lost");
                    }
                    return count;
                }
            };
        }
    }

    @Test
    void aRetryAfterALostReplyGetsTheSameGrant() {
        JedisSocketFactory sockets = () -> {
            try {
                return new LosesReplies(server.port);
            } catch (IOException failed) {
                throw new JedisConnectionException(failed);
            }
        };
        ConnectionProvider connections = new PooledConnectionProvider(new ConnectionFactory(sockets, config(30_000)));
        try (RedisClient unlucky = RedisClient.builder().connectionProvider(connections).build()) {
            unlucky.ping();
            LatchkeyLock lock = new LatchkeyLock(unlucky, "lock", 30_000);
            String before = grants();
            LosesReplies.toLose.set(1);
            lock.lock();
            assertTrue(LosesReplies.toLose.get() <= 0);
            assertEquals(Long.toString(lock.fence()), client.hget("lock", ":fence"));
            assertEquals(Long.parseLong(before) + 1, Long.parseLong(grants()));
            lock.unlock();
            assertFalse(client.exists("lock"));
        }
    }

    private String grants() {
        return client.info("locks").lines().filter(line -> line.startsWith("lock_grants_total:")).findFirst().orElseThrow().substring(18);
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
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
        }
    }
}
