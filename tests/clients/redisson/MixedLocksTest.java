import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import latchkey.locks.LatchkeyLock;
import latchkey.locks.Locks;
import latchkey.locks.Options;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.Protocol;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.params.ClientKillParams;

/** Redisson's lock and the package's LatchkeyLock on one key: they exclude and wake each other. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
@Timeout(60)
class MixedLocksTest {
    /** Far more than a test lasts: who is not woken by a message waits so long. */
    private static final long LEASE_MS = 3_600_000;
    private static final Options LEASE = Options.DEFAULT.withLease(Duration.ofMillis(LEASE_MS));

    private Server server;
    private RedissonClient redisson;
    private RedisClient jedis;
    private LatchkeyLock nativeLock;

    Protocol protocol() {
        return Protocol.RESP2;
    }

    @BeforeAll
    void start() throws Exception {
        server = new Server();
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setProtocol(protocol());
        config.setThreads(4);
        config.setNettyThreads(4);
        config.useSingleServer()
            .setAddress("redis://127.0.0.1:" + server.port)
            .setConnectionPoolSize(16)
            .setConnectionMinimumIdleSize(2)
            .setSubscriptionConnectionMinimumIdleSize(1);
        redisson = Redisson.create(config);
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setMaxTotal(40);
        jedis = RedisClient.builder().hostAndPort("127.0.0.1", server.port).poolConfig(pool).build();
        nativeLock = nativeLock(LEASE);
        Assumptions.assumeFalse(jedis.configGet("redis-version").isEmpty(), "the server is another one");
    }

    @AfterAll
    void stop() throws Exception {
        redisson.shutdown(0, 5, TimeUnit.SECONDS);
        jedis.close();
        server.close();
    }

    @BeforeEach
    void clear() {
        jedis.flushAll();
    }

    private LatchkeyLock nativeLock(Options options) {
        return new LatchkeyLock(new Locks(jedis), "lock", options);
    }

    private RLock redissons() {
        return redisson.getLock("lock");
    }

    /** Takes and frees the lock in another thread, from the time when it is called. */
    private static CompletableFuture<Void> takeElsewhere(Lock lock, long leaseMs) {
        return CompletableFuture.runAsync(() -> {
            if (lock instanceof RLock redissons) {
                redissons.lock(leaseMs, TimeUnit.MILLISECONDS);
            } else {
                lock.lock();
            }
            lock.unlock();
        });
    }

    private boolean isSubscribed() {
        try (Jedis other = new Jedis("127.0.0.1", server.port)) {
            return other.pubsubNumSub("redisson_lock__channel:{lock}").get("redisson_lock__channel:{lock}") > 0;
        }
    }

    private boolean isQueued() {
        return jedis.info("locks").contains("lock_waiters:1");
    }

    @Test
    void eachRefusesWhatTheOtherHolds() throws Exception {
        redissons().lock(LEASE_MS, TimeUnit.MILLISECONDS);
        redissons().lock(LEASE_MS, TimeUnit.MILLISECONDS);
        assertFalse(nativeLock.tryLock());
        redissons().unlock();
        assertFalse(nativeLock.tryLock());
        redissons().unlock();
        assertTrue(nativeLock.tryLock());
        assertTrue(redissons().isLocked());
        assertFalse(redissons().tryLock());
        assertFalse(Crowd.elsewhere(() -> redissons().tryLock()));
        nativeLock.unlock();
        assertTrue(redissons().tryLock());
        redissons().unlock();
        assertFalse(jedis.exists("lock"));
    }

    @Test
    void aReleaseWakesRedissonsWaiters() throws Exception {
        nativeLock.lock();
        CompletableFuture<Void> waiting = takeElsewhere(redissons(), LEASE_MS);
        Crowd.until(this::isSubscribed);
        nativeLock.unlock();
        waiting.get(20, TimeUnit.SECONDS);
        assertFalse(jedis.exists("lock"));
    }

    @Test
    void redissonsUnlockWakesTheQueue() throws Exception {
        redissons().lock(LEASE_MS, TimeUnit.MILLISECONDS);
        CompletableFuture<Void> waiting = takeElsewhere(nativeLock, LEASE_MS);
        Crowd.until(this::isQueued);
        redissons().unlock();
        waiting.get(20, TimeUnit.SECONDS);
        assertFalse(jedis.exists("lock"));
    }

    @Test
    void bothWaitAndBothAreServed() throws Exception {
        for (Lock first : List.of(nativeLock, redissons())) {
            if (first instanceof RLock redissons) {
                redissons.lock(LEASE_MS, TimeUnit.MILLISECONDS);
            } else {
                first.lock();
            }
            CompletableFuture<Void> subscribed = takeElsewhere(redissons(), LEASE_MS);
            Crowd.until(this::isSubscribed);
            CompletableFuture<Void> queued = takeElsewhere(nativeLock, LEASE_MS);
            Crowd.until(this::isQueued);
            first.unlock();
            queued.get(20, TimeUnit.SECONDS);
            subscribed.get(20, TimeUnit.SECONDS);
            assertFalse(jedis.exists("lock"));
            Crowd.until(() -> !isSubscribed());
        }
    }

    @Test
    void theEndOfASessionWakesRedissonsWaiters() throws Exception {
        JedisClientConfig config = DefaultJedisClientConfig.builder().clientName("dying").build();
        try (RedisClient dying = RedisClient.builder().hostAndPort("127.0.0.1", server.port).clientConfig(config).build()) {
            new LatchkeyLock(new Locks(dying), "lock", LEASE.withGrace(Duration.ofMillis(20))).lock();
            CompletableFuture<Void> waiting = takeElsewhere(redissons(), LEASE_MS);
            Crowd.until(this::isSubscribed);
            // The holder's process dies, as far as the server sees.
            try (Jedis other = new Jedis("127.0.0.1", server.port)) {
                other.clientList().lines().filter(line -> line.contains("name=dying")).forEach(line ->
                    other.clientKill(ClientKillParams.clientKillParams().id(line.split(" ")[0].substring("id=".length()))));
            }
            waiting.get(20, TimeUnit.SECONDS);
        }
    }

    @Test
    void theLostLeaseOfOneThatWasServedFirstWakesRedissonsWaiters() throws Exception {
        nativeLock.lock();
        // It has been told to come back when this lease ends.
        CompletableFuture<Void> waiting = takeElsewhere(redissons(), LEASE_MS);
        Crowd.until(this::isSubscribed);
        CompletableFuture<Void> served = CompletableFuture.runAsync(nativeLock(Options.DEFAULT.withLease(Duration.ofMillis(50)))::lock);
        Crowd.until(this::isQueued);
        nativeLock.unlock();
        served.get(20, TimeUnit.SECONDS);
        waiting.get(20, TimeUnit.SECONDS);
    }

    @Test
    void aMixedFleetCountsTogether() throws Exception {
        Crowd crowd = new Crowd();
        int[] unguarded = {0};
        List<Boolean> order = Collections.synchronizedList(new ArrayList<>());
        Crowd.sideBySide(8, number -> {
            boolean isNative = number % 2 == 0;
            for (int round = 0; round < 40; round++) {
                Lock lock = isNative ? nativeLock : redissons();
                if (isNative) {
                    nativeLock.lock();
                } else {
                    redissons().lock(LEASE_MS, TimeUnit.MILLISECONDS);
                }
                crowd.enter();
                // Read and write apart: a second owner would make an addition disappear.
                int seen = unguarded[0];
                order.add(isNative);
                Thread.yield();
                unguarded[0] = seen + 1;
                crowd.leave();
                lock.unlock();
                // Redisson's get a turn only while nobody is queued.
                TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextInt(5000));
            }
        });
        assertEquals(List.of(320, 320, 1), List.of(unguarded[0], crowd.entered.get(), crowd.most.get()));
        assertFalse(jedis.exists("lock"));
        int turns = 0;
        for (int at = 1; at < order.size(); at++) {
            turns += order.get(at).equals(order.get(at - 1)) ? 0 : 1;
        }
        // How many depends on the machine.
        assertTrue(turns > 2, "they took few turns: " + turns);
    }
}
