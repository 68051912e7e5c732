import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import org.redisson.Redisson;
import org.redisson.api.RBatch;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RFuture;
import org.redisson.api.RLock;
import org.redisson.api.RMapCache;
import org.redisson.api.RPatternTopic;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RRateLimiter;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RTopic;
import org.redisson.api.RateType;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.Protocol;

/** Redisson's locks, semaphores, queues and topics: scripts, messages that wake waiters, and blocking commands. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
@Timeout(60)
class RedissonTest {
    /** How long a lock without a lease lives if its owner dies; renewed at a third of it. */
    private static final long WATCHDOG_MS = 3000;

    private Server server;
    RedissonClient redisson;
    /** Another process, as it were: with an identifier and subscriptions of its own. */
    RedissonClient other;

    Protocol protocol() {
        return Protocol.RESP2;
    }

    private RedissonClient connect() {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setProtocol(protocol());
        config.setLockWatchdogTimeout(WATCHDOG_MS);
        config.setThreads(4);
        config.setNettyThreads(4);
        use(config);
        return Redisson.create(config);
    }

    /** What the clients connect to. */
    void use(Config config) {
        config.useSingleServer()
            .setAddress("redis://127.0.0.1:" + server.port)
            .setConnectionPoolSize(16)
            .setConnectionMinimumIdleSize(2)
            .setSubscriptionConnectionMinimumIdleSize(1);
    }

    long subscribers(String channel) {
        return redisson.getTopic(channel).countSubscribers();
    }

    void startServers() throws Exception {
        server = new Server();
    }

    void stopServers() throws Exception {
        server.close();
    }

    @BeforeAll
    void start() throws Exception {
        startServers();
        redisson = connect();
        other = connect();
    }

    @AfterAll
    void stop() throws Exception {
        redisson.shutdown(0, 5, TimeUnit.SECONDS);
        other.shutdown(0, 5, TimeUnit.SECONDS);
        stopServers();
    }

    @BeforeEach
    void clear() {
        redisson.getKeys().flushall();
    }

    @Test
    void aLockIsTakenAgainByItsOwnerAlone() throws Exception {
        RLock lock = redisson.getLock("lock");
        lock.lock();
        lock.lock();
        assertEquals(2, lock.getHoldCount());
        assertTrue(lock.isHeldByCurrentThread());
        assertEquals(List.of("2"), new ArrayList<>(redisson.<String, String>getMap("lock").readAllValues()));
        assertFalse(Crowd.elsewhere(lock::tryLock));
        assertFalse(other.getLock("lock").tryLock());
        assertFalse(Crowd.elsewhere(lock::isHeldByCurrentThread));
        // Whoever does not own it cannot give it back.
        assertThrows(IllegalMonitorStateException.class, () -> other.getLock("lock").unlock());
        lock.unlock();
        assertEquals(1, lock.getHoldCount());
        assertFalse(other.getLock("lock").tryLock());
        lock.unlock();
        assertFalse(lock.isLocked());
        assertTrue(other.getLock("lock").tryLock());
        assertTrue(redisson.getLock("lock").forceUnlock());
        assertEquals(0, redisson.getKeys().count());
    }

    @Test
    void aWatchdogRenewsALockWithoutALease() throws Exception {
        RLock lock = redisson.getLock("lock");
        lock.lock();
        long[] least = {WATCHDOG_MS + 1};
        Crowd.until(() -> {
            long left = lock.remainTimeToLive();
            assertTrue(left > 0, "the lock is lost");
            least[0] = Math.min(least[0], left);
            return left > least[0] + WATCHDOG_MS / 6;
        });
        lock.unlock();
        assertFalse(lock.isLocked());
    }

    @Test
    void aLeaseEndsAndTheWaiterOwnsTheLock() throws Exception {
        RLock lock = redisson.getLock("lock");
        lock.lock(100, TimeUnit.MILLISECONDS);
        assertTrue(other.getLock("lock").tryLock(30, 10, TimeUnit.SECONDS));
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertTrue(lock.isLocked());
        other.getLock("lock").unlock();
    }

    @Test
    void contendersOfTwoClientsOwnALockOneAtATime() throws Exception {
        Crowd crowd = new Crowd();
        int[] unguarded = {0};
        Crowd.sideBySide(16, number -> {
            RLock lock = (number % 2 == 0 ? redisson : other).getLock("lock");
            for (int round = 0; round < 5; round++) {
                lock.lock(30, TimeUnit.SECONDS);
                crowd.enter();
                unguarded[0]++;
                crowd.leave();
                lock.unlock();
            }
        });
        assertEquals(List.of(80, 1, 80), List.of(crowd.entered.get(), crowd.most.get(), unguarded[0]));
        assertFalse(redisson.getLock("lock").isLocked());
    }

    @Test
    void theMessageOfAnUnlockWakesAWaiter() throws Exception {
        RLock lock = redisson.getLock("lock");
        // The lease outlasts the test: without the message the waiter would sleep until its end.
        lock.lock(300, TimeUnit.SECONDS);
        CompletableFuture<Boolean> waiter = CompletableFuture.supplyAsync(() -> {
            RLock theirs = other.getLock("lock");
            try {
                boolean taken = theirs.tryLock(50, 10, TimeUnit.SECONDS);
                if (taken) {
                    theirs.unlock();
                }
                return taken;
            } catch (InterruptedException interrupted) {
                return false;
            }
        });
        Crowd.until(() -> subscribers("redisson_lock__channel:{lock}") == 1);
        assertFalse(waiter.isDone());
        lock.unlock();
        assertTrue(waiter.get(40, TimeUnit.SECONDS));
    }

    @Test
    void aFairLockIsOwnedInTheOrderOfAsking() throws Exception {
        RLock lock = redisson.getFairLock("fair");
        lock.lock();
        List<Integer> order = Collections.synchronizedList(new ArrayList<>());
        List<CompletableFuture<Void>> waiters = new ArrayList<>();
        for (int number = 0; number < 5; number++) {
            int mine = number;
            waiters.add(CompletableFuture.runAsync(() -> {
                RLock theirs = (mine % 2 == 0 ? redisson : other).getFairLock("fair");
                theirs.lock();
                order.add(mine);
                theirs.unlock();
            }, task -> new Thread(task).start()));
            int waiting = number + 1;
            Crowd.until(() -> redisson.getList("redisson_lock_queue:{fair}").size() == waiting);
        }
        assertEquals(5, redisson.getScoredSortedSet("redisson_lock_timeout:{fair}").size());
        lock.unlock();
        for (CompletableFuture<Void> waiter : waiters) {
            waiter.get(40, TimeUnit.SECONDS);
        }
        assertEquals(List.of(0, 1, 2, 3, 4), order);
        assertEquals(0, redisson.getKeys().count());
    }

    @Test
    void readersShareAndAWriterIsAlone() throws Exception {
        RReadWriteLock lock = redisson.getReadWriteLock("rw");
        lock.readLock().lock();
        assertTrue(Crowd.elsewhere(() -> {
            boolean taken = lock.readLock().tryLock();
            lock.readLock().unlock();
            return taken;
        }));
        assertFalse(other.getReadWriteLock("rw").writeLock().tryLock());
        lock.readLock().unlock();
        lock.writeLock().lock();
        // The writer may read as well; others may not.
        assertTrue(lock.readLock().tryLock());
        assertFalse(other.getReadWriteLock("rw").readLock().tryLock());
        lock.writeLock().unlock();
        assertTrue(Crowd.elsewhere(() -> other.getReadWriteLock("rw").readLock().tryLock()));
        lock.readLock().unlock();
        redisson.getKeys().flushall();

        Crowd writers = new Crowd();
        AtomicInteger readers = new AtomicInteger();
        Crowd.sideBySide(9, number -> {
            RReadWriteLock mine = (number % 2 == 0 ? redisson : other).getReadWriteLock("rw");
            for (int round = 0; round < 3; round++) {
                if (number % 3 == 0) {
                    mine.writeLock().lock(30, TimeUnit.SECONDS);
                    writers.enter();
                    assertEquals(0, readers.get());
                    writers.leave();
                    mine.writeLock().unlock();
                } else {
                    mine.readLock().lock(30, TimeUnit.SECONDS);
                    readers.incrementAndGet();
                    readers.decrementAndGet();
                    mine.readLock().unlock();
                }
            }
        });
        assertEquals(List.of(9, 1), List.of(writers.entered.get(), writers.most.get()));
    }

    @Test
    void aSemaphoreHasItsPlaces() throws Exception {
        RSemaphore semaphore = redisson.getSemaphore("semaphore");
        assertTrue(semaphore.trySetPermits(3));
        assertFalse(semaphore.trySetPermits(5));
        Crowd crowd = new Crowd();
        Crowd.sideBySide(10, number -> {
            RSemaphore mine = (number % 2 == 0 ? redisson : other).getSemaphore("semaphore");
            for (int round = 0; round < 3; round++) {
                mine.acquire();
                crowd.enter();
                Thread.sleep(1);
                crowd.leave();
                mine.release();
            }
        });
        assertEquals(30, crowd.entered.get());
        assertTrue(crowd.most.get() <= 3, "inside at once: " + crowd.most);
        assertEquals(3, semaphore.drainPermits());
        assertFalse(semaphore.tryAcquire());
        semaphore.addPermits(2);
        assertTrue(semaphore.tryAcquire(2));
    }

    @Test
    void aPlaceWithALeaseComesBack() throws Exception {
        RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore("places");
        assertTrue(semaphore.trySetPermits(2));
        String lasting = semaphore.acquire(60, TimeUnit.SECONDS);
        String brief = semaphore.acquire(50, TimeUnit.MILLISECONDS);
        assertNotNull(brief);
        // Waits for the lease of `brief`, which nobody gives back.
        String next = other.getPermitExpirableSemaphore("places").tryAcquire(30, 60, TimeUnit.SECONDS);
        assertNotNull(next);
        assertFalse(semaphore.tryRelease(brief));
        assertTrue(semaphore.updateLeaseTime(lasting, 90, TimeUnit.SECONDS));
        assertNull(semaphore.tryAcquire());
        assertTrue(semaphore.tryRelease(next));
        semaphore.release(lasting);
        assertEquals(2, semaphore.availablePermits());
    }

    @Test
    void aLatchOpensForAll() throws Exception {
        RCountDownLatch latch = redisson.getCountDownLatch("latch");
        assertTrue(latch.trySetCount(3));
        Crowd.sideBySide(6, number -> {
            if (number < 3) {
                redisson.getCountDownLatch("latch").countDown();
            } else {
                assertTrue(other.getCountDownLatch("latch").await(40, TimeUnit.SECONDS));
            }
        });
        assertEquals(0, latch.getCount());
    }

    @Test
    void topicsAndPatternsHearMessages() throws Exception {
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        RTopic topic = redisson.getTopic("news");
        topic.addListener(String.class, (channel, message) -> heard.add(channel + " " + message));
        // How many have heard it is told of one node only.
        other.getTopic("news").publish("one");
        assertEquals("news one", heard.poll(40, TimeUnit.SECONDS));
        topic.removeAllListeners();

        RPatternTopic pattern = redisson.getPatternTopic("n?ws*");
        pattern.addListener(String.class, (matched, channel, message) -> heard.add(matched + " " + channel + " " + message));
        other.getTopic("news:sport").publish("two");
        assertEquals("n?ws* news:sport two", heard.poll(40, TimeUnit.SECONDS));
        other.getTopic("old").publish("three");
        pattern.removeAllListeners();
        assertTrue(heard.isEmpty());
    }

    @Test
    void aBlockingQueueHandsEachItemToOneTaker() throws Exception {
        List<String> taken = Collections.synchronizedList(new ArrayList<>());
        Crowd.sideBySide(4, number -> {
            if (number == 0) {
                for (int item = 0; item < 100; item++) {
                    redisson.<String>getBlockingQueue("queue").add(Integer.toString(item));
                }
                redisson.<String>getBlockingQueue("queue").addAll(List.of("stop", "stop", "stop"));
                return;
            }
            RBlockingQueue<String> queue = other.getBlockingQueue("queue");
            for (String item; !(item = queue.take()).equals("stop"); ) {
                taken.add(item);
            }
        });
        assertEquals(100, taken.stream().distinct().count());
        assertEquals(100, taken.size());
        assertNull(redisson.getBlockingQueue("nothing").poll(50, TimeUnit.MILLISECONDS));
        redisson.<String>getBlockingQueue("{queue}a").add("x");
        assertEquals("x", redisson.<String>getBlockingQueue("{queue}b").pollFromAny(40, TimeUnit.SECONDS, "{queue}a"));
        redisson.<String>getBlockingQueue("{queue}a").add("y");
        assertEquals("y", redisson.<String>getBlockingQueue("{queue}a").pollLastAndOfferFirstTo("{queue}b", 40, TimeUnit.SECONDS));
        assertEquals(List.of("y"), redisson.<String>getList("{queue}b").readAll());
    }

    @Test
    @SuppressWarnings("deprecation")
    void aDelayedQueueGivesItsItemsWhenTheyAreDue() throws Exception {
        RBlockingQueue<String> queue = redisson.getBlockingQueue("due");
        RDelayedQueue<String> delayed = redisson.getDelayedQueue(queue);
        Map<String, Long> due = new HashMap<>();
        for (int delay : List.of(450, 150, 300)) {
            due.put("after " + delay, System.currentTimeMillis() + delay);
            delayed.offer("after " + delay, delay, TimeUnit.MILLISECONDS);
        }
        delayed.offer("never", 1, TimeUnit.HOURS);
        assertEquals(4, delayed.size());
        assertTrue(delayed.remove("never"));
        // Their order depends on how long it took to offer them.
        while (!due.isEmpty()) {
            String item = queue.poll(40, TimeUnit.SECONDS);
            assertTrue(System.currentTimeMillis() >= due.remove(item), item + " is early");
        }
        assertEquals(0, delayed.size());
        delayed.destroy();
    }

    @Test
    void aRateLimiterGivesItsRate() throws Exception {
        RRateLimiter limiter = redisson.getRateLimiter("limiter");
        assertTrue(limiter.trySetRate(RateType.OVERALL, 5, Duration.ofHours(1)));
        assertFalse(limiter.trySetRate(RateType.OVERALL, 50, Duration.ofHours(1)));
        AtomicInteger allowed = new AtomicInteger();
        Crowd.sideBySide(10, number -> {
            RRateLimiter mine = (number % 2 == 0 ? redisson : other).getRateLimiter("limiter");
            for (int request = 0; request < 2; request++) {
                if (mine.tryAcquire()) {
                    allowed.incrementAndGet();
                }
            }
        });
        assertEquals(5, allowed.get());
        assertEquals(0, limiter.availablePermits());

        RRateLimiter quick = redisson.getRateLimiter("quick");
        quick.trySetRate(RateType.OVERALL, 1, Duration.ofMillis(50));
        assertTrue(quick.tryAcquire(1, Duration.ofSeconds(40)));
        assertTrue(quick.tryAcquire(1, Duration.ofSeconds(40)));
    }

    @Test
    void entriesOfAMapExpire() throws Exception {
        RMapCache<String, String> map = redisson.getMapCache("cache");
        map.put("lasting", "1");
        map.put("brief", "2", 50, TimeUnit.MILLISECONDS);
        assertEquals(Map.of("lasting", "1"), waitFor(map));
        assertNull(map.putIfAbsent("brief", "3", 1, TimeUnit.HOURS));
        assertEquals("3", map.get("brief"));
        assertTrue(map.remainTimeToLive("brief") > 0);
    }

    private static Map<String, String> waitFor(RMapCache<String, String> map) throws Exception {
        Crowd.until(() -> map.get("brief") == null);
        return map.readAllMap();
    }

    @Test
    void aBatchIsATransaction() throws Exception {
        RBatch batch = redisson.createBatch(org.redisson.api.BatchOptions.defaults()
            .executionMode(org.redisson.api.BatchOptions.ExecutionMode.REDIS_WRITE_ATOMIC));
        RFuture<Long> count = batch.getAtomicLong("{n}").addAndGetAsync(41);
        batch.getBucket("{n}b").setAsync("v");
        batch.getAtomicLong("{n}").incrementAndGetAsync();
        assertEquals(42L, batch.execute().getResponses().get(2));
        assertEquals(41L, count.get());
        RBatch failing = redisson.createBatch();
        RFuture<Long> wrong = failing.getAtomicLong("{n}b").incrementAndGetAsync();
        failing.getAtomicLong("{n}").incrementAndGetAsync();
        assertThrows(Exception.class, failing::execute);
        assertThrows(ExecutionException.class, wrong::get);
        assertEquals(43L, redisson.getAtomicLong("{n}").get());
    }
}
