import java.io.IOException;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.util.SafeEncoder;

/**
 * A lock of a Latchkey server through Jedis. Each thread is an owner of its own and may take it again: holds are counted here,
 * so that a request may be repeated. See README.md for its traps.
 *
 * <pre>{@code
 * LatchkeyLock lock = new LatchkeyLock(client, "jobs", 30_000);
 * lock.lock();
 * try {
 *     resource.write(value, lock.fence());
 * } finally {
 *     lock.unlock();
 * }
 * }</pre>
 */
public final class LatchkeyLock implements Lock {
    /** Bounds one request. A longer wait is made of several, each at the end of the queue. */
    private static final long LONGEST_WAIT_MS = 30_000;
    private static final ExecutorService WAITING = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "latchkey-lock");
        thread.setDaemon(true);
        return thread;
    });

    private enum Command implements ProtocolCommand {
        ACQUIRE, RELEASE, RENEW, GUARD;

        @Override
        public byte[] getRaw() {
            return SafeEncoder.encode("LOCK." + name());
        }
    }

    /**
     * What a thread holds or waits for. It keeps a connection of the pool until it is released: so a release does not stand in
     * line with those who wait, and a session has a connection of its own.
     */
    private static final class Holding {
        final String owner = UUID.randomUUID().toString();
        volatile Connection connection;
        volatile boolean isAbandoned;
        int timeoutMs;
        long fence;
        int holds;
    }

    private final RedisClient client;
    private final String key;
    private final long leaseMs;
    private final long graceMs;
    private final ThreadLocal<Holding> mine = ThreadLocal.withInitial(Holding::new);

    /** A lock that ends leaseMs after it was taken or renewed. */
    public LatchkeyLock(RedisClient client, String key, long leaseMs) {
        this(client, key, leaseMs, 0);
    }

    /** One that ends leaseMs after the last sign of life of its connection, and graceMs after its close; 0: the other kind. */
    public LatchkeyLock(RedisClient client, String key, long leaseMs, long graceMs) {
        this.client = client;
        this.key = key;
        this.leaseMs = leaseMs;
        this.graceMs = graceMs;
    }

    /** The number of this thread's grant. Hand it to whatever the lock protects. */
    public long fence() {
        return held().fence;
    }

    @Override
    public boolean tryLock() {
        boolean granted = noteReply(send(acquire()));
        if (!granted) {
            forget();
        }
        return granted;
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        if (Thread.interrupted()) {
            throw new InterruptedException();
        }
        long started = System.nanoTime();
        boolean granted = noteReply(send(acquire()));
        while (!granted) {
            long leftNs = unit.toNanos(time) - (System.nanoTime() - started);
            // Rounded up: it waits no less than it was told.
            long leftMs = TimeUnit.NANOSECONDS.toMillis(leftNs) + 1;
            if (leftNs <= 0) {
                forget();
                return false;
            }
            granted = noteReply(waitInQueue(Math.min(leftMs, LONGEST_WAIT_MS)));
        }
        return true;
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        tryLock(Long.MAX_VALUE, TimeUnit.NANOSECONDS);
    }

    @Override
    public void lock() {
        boolean interrupted = false;
        while (true) {
            try {
                lockInterruptibly();
                break;
            } catch (InterruptedException again) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Gives one hold back. IllegalMonitorStateException: this thread has none, or has lost it. */
    @Override
    public void unlock() {
        Holding holding = held();
        if (--holding.holds > 0) {
            return;
        }
        try {
            if ((Long) send(command(Command.RELEASE).add("FENCE").add(holding.fence)) < 0) {
                throw lost();
            }
        } finally {
            forget();
        }
    }

    /** Lets the lease last so long from now on, at least. IllegalMonitorStateException: this thread has lost the lock. */
    public void renew(long ms) {
        CommandArguments renewal = new CommandArguments(Command.RENEW).add(1).key(key);
        List<?> fences = (List<?>) send(renewal.add(held().owner).add("PX").add(ms));
        if (!fences.get(0).equals(held().fence)) {
            throw lost();
        }
    }

    /** Adds a guard to a transaction: unless this grant is still held, nothing of it is done and exec() gives null. */
    public void guard(AbstractTransaction transaction) {
        transaction.sendCommand(command(Command.GUARD).add("FENCE").add(held().fence));
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of several processes has no conditions");
    }

    private Holding held() {
        if (mine.get().holds == 0) {
            throw new IllegalMonitorStateException("this thread does not hold the lock " + key);
        }
        return mine.get();
    }

    private CommandArguments command(Command command) {
        return new CommandArguments(command).key(key).add(mine.get().owner);
    }

    private CommandArguments acquire() {
        CommandArguments acquire = command(Command.ACQUIRE).add("PX").add(leaseMs);
        return graceMs == 0 ? acquire : acquire.add("SESSION").add("GRACE").add(graceMs);
    }

    private boolean noteReply(Object reply) {
        Holding holding = mine.get();
        long fence = (Long) ((List<?>) reply).get(0);
        if (holding.holds > 0 && fence != holding.fence) {
            // The lease ended in between. Whoever relies on the first grant must not go on with another.
            send(command(Command.RELEASE).add("FENCE").add(fence));
            forget();
            throw lost();
        }
        if (fence != 0) {
            holding.fence = fence;
            holding.holds++;
        }
        return fence != 0;
    }

    private Object send(CommandArguments command) {
        return send(mine.get(), command, 0);
    }

    /** Sends a command, and once more over another connection if that fails: each of them may be repeated. */
    private Object send(Holding holding, CommandArguments command, long waitMs) {
        for (boolean isRepeated = false; ; isRepeated = true) {
            if (holding.connection == null) {
                holding.connection = client.getPool().getResource();
                holding.timeoutMs = holding.connection.getSoTimeout();
            }
            try {
                // The client must not give up the reply before the server does.
                holding.connection.setSoTimeout(waitMs == 0 ? holding.timeoutMs : (int) waitMs + 5000);
                return holding.connection.executeCommand(command);
            } catch (JedisDataException refused) {
                if (holding.holds == 0) {
                    giveBack(holding);
                }
                throw refused;
            } catch (JedisConnectionException failed) {
                giveBack(holding);
                if (isRepeated || holding.isAbandoned) {
                    throw failed;
                }
            }
        }
    }

    /** Waits in another thread, so that this one can be interrupted. */
    private Object waitInQueue(long ms) throws InterruptedException {
        Holding holding = mine.get();
        CommandArguments command = acquire().add("BLOCK").add(ms);
        Future<Object> reply = WAITING.submit(() -> send(holding, command, ms));
        try {
            return reply.get();
        } catch (ExecutionException failed) {
            throw (RuntimeException) failed.getCause();
        } catch (InterruptedException interrupted) {
            holding.isAbandoned = true;
            mine.remove();
            WAITING.execute(() -> abandon(holding, reply));
            throw interrupted;
        }
    }

    /** Ends a wait that nobody is interested in any more, and gives back what it may have been granted. */
    private void abandon(Holding holding, Future<Object> reply) {
        while (true) {
            try {
                Connection waiting = holding.connection;
                if (waiting != null) {
                    waiting.forceDisconnect();
                }
                reply.get(5, TimeUnit.MILLISECONDS);
                break;
            } catch (TimeoutException again) {
                // The wait had not begun.
            } catch (IOException | ExecutionException | InterruptedException ended) {
                break;
            }
        }
        giveBack(holding);
        // Without a fence: the reply that named it is lost.
        client.executeCommand(new CommandArguments(Command.RELEASE).key(key).add(holding.owner));
    }

    private static void giveBack(Holding holding) {
        Connection connection = holding.connection;
        holding.connection = null;
        if (connection != null && !connection.isBroken()) {
            connection.setSoTimeout(holding.timeoutMs);
        }
        if (connection != null) {
            connection.close();
        }
    }

    private void forget() {
        giveBack(mine.get());
        mine.remove();
    }

    private IllegalMonitorStateException lost() {
        return new IllegalMonitorStateException("this thread has lost the lock " + key);
    }
}
