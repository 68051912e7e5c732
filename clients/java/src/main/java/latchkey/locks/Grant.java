package latchkey.locks;

import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.Connection;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisMovedDataException;
import redis.clients.jedis.util.Pool;
import redis.clients.jedis.util.SafeEncoder;

/** What a lock and permits have in common. One grant, which ends with its release; `close` releases it. */
public abstract class Grant implements AutoCloseable {
    /** Bounds one request, so that a server that vanished is noticed. Each further one begins at the end of the queue. */
    private static final long LONGEST_WAIT_MS = 60_000;
    /** How much longer than the server a client waits for the reply. */
    private static final int PATIENCE_MS = 5000;
    /** How many connections may break one after the other, before an acquisition gives up. */
    private static final int TRIES = 3;
    private static final int REDIRECTIONS = 16;
    private static final ExecutorService THREADS = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "latchkey-locks");
        thread.setDaemon(true);
        return thread;
    });

    final String key;
    final Options options;
    volatile long fence;
    private final Locks locks;
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile long untilNs = System.nanoTime();
    /** Outside of the pool, for a wait or a session. */
    private volatile Connection own;

    Grant(Locks locks, String key, Options options) {
        this.locks = locks;
        this.key = key;
        this.options = options;
    }

    abstract List<Object> question();

    /** Takes over a grant, and gives the milliseconds that are left of it. */
    abstract long read(List<?> reply);

    abstract String holder(List<?> reply);

    abstract void renewAll(long leaseMs);

    /** Whether it was lost. */
    abstract boolean releaseAll(long keepMs);

    /** The number of this grant. Hand it to whatever is protected. */
    public long fence() {
        return fence;
    }

    public String owner() {
        return options.owner();
    }

    /** For how long this is held at least. It counts from before the request, by a clock that nobody sets. */
    public Duration left() {
        return Duration.ofNanos(Math.max(0, untilNs - System.nanoTime()));
    }

    /** Lets the lease last as long as at first from now on. Errors: LockLostException, and those of Jedis. */
    public void renew() {
        renew(options.lease());
    }

    /** Lets the lease last so long from now on, at least. */
    public void renew(Duration lease) {
        long began = System.nanoTime();
        renewAll(lease.toMillis());
        untilNs = Math.max(untilNs - began, lease.toNanos()) + began;
    }

    /** Gives it back. Errors: LockLostException if it had ended before; those of Jedis, after which it ends with its lease. */
    public void release() {
        release(Duration.ZERO);
    }

    /** Gives a lock back that nobody gets for so long. */
    public void release(Duration keep) {
        ended.countDown();
        try {
            if (releaseAll(keep.toMillis())) {
                throw lost();
            }
        } finally {
            untilNs = System.nanoTime();
            closeOwn();
        }
    }

    @Override
    public void close() {
        release();
    }

    /** Binds the session to its connection, a new one if that broke; whether there was something to bind. */
    public boolean attach() {
        // Whoever asks over a new connection has attached it already.
        return (Long) twice(request("LOCK.ATTACH", owner())).reply() > 0;
    }

    /**
     * Renews in a thread of its own, three times in a lease, and calls onLost once if this is lost, or if nothing was heard of the
     * server until the lease was over. It ends with the release.
     */
    public void watch(Consumer<LockLostException> onLost) {
        THREADS.execute(() -> {
            try {
                while (!ended.await(Math.min(options.lease().toNanos() / 3, Math.max(1_000_000, left().toNanos())), TimeUnit.NANOSECONDS)) {
                    try {
                        renew();
                    } catch (LockLostException | JedisException failed) {
                        if (ended.getCount() == 0) {
                            return;
                        }
                        if (failed instanceof LockLostException || left().isZero()) {
                            onLost.accept(lost());
                            return;
                        }
                    }
                }
            } catch (InterruptedException never) {
                Thread.currentThread().interrupt();
            }
        });
    }

    LockLostException lost() {
        untilNs = System.nanoTime();
        return new LockLostException(key, owner());
    }

    void take() throws InterruptedException {
        boolean isGranted = false;
        boolean isUnknown = true;
        try {
            acquire();
            isGranted = true;
        } catch (NotGrantedException | JedisDataException refused) {
            isUnknown = false;
            throw refused;
        } finally {
            if (!isGranted || options.grace() == null) {
                closeOwn();
            }
            if (!isGranted && isUnknown) {
                // Interrupted, or the connection broke: nobody will release what may have been granted. Else it ends with its lease.
                try {
                    abandon();
                } catch (JedisException failed) {
                    // The first error tells more.
                }
                closeOwn();
            }
        }
    }

    /** Gives back what may have been granted although nobody got to know. */
    void abandon() {
        releaseAll(0);
    }

    private void acquire() throws InterruptedException {
        List<Object> question = question();
        if (options.grace() != null) {
            question.addAll(List.of("SESSION", "GRACE", options.grace().toMillis()));
        }
        long started = System.nanoTime();
        long block = 0;
        int broken = 0;
        while (true) {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            List<Object> asked = new ArrayList<>(question);
            if (block > 0) {
                asked.addAll(List.of("BLOCK", block));
            }
            long began = System.nanoTime();
            List<?> reply;
            try {
                CommandArguments request = request(asked.toArray());
                reply = (List<?>) (block > 0 ? waiting(request, block) : ask(request, broken > 0, 0));
            } catch (JedisConnectionException failed) {
                // It may have been granted. The same owner that asks again finds its grant, or stands in the queue anew.
                block = 0;
                if (++broken == TRIES) {
                    throw failed;
                }
                continue;
            }
            broken = 0;
            boolean isGranted = !reply.get(0).equals(0L);
            if (isGranted && System.nanoTime() - began <= options.lease().toNanos() / 10) {
                untilNs = began + TimeUnit.MILLISECONDS.toNanos(read(reply));
                return;
            }
            // A lease that began in a long wait is measured by asking again, which gets the same grant.
            block = 0;
            if (!isGranted) {
                block = LONGEST_WAIT_MS;
                if (options.waiting() != null) {
                    long leftNs = options.waiting().toNanos() - (System.nanoTime() - started);
                    // Rounded up: it waits no less than it was told.
                    block = Math.min(block, leftNs <= 0 ? 0 : TimeUnit.NANOSECONDS.toMillis(leftNs) + 1);
                }
                if (block <= 0) {
                    throw new NotGrantedException(key, holder(reply));
                }
            }
        }
    }

    record Answer(Object reply, boolean isRepeated) {}

    /** Asks again if the connection breaks: requests of locks may be repeated. */
    Answer twice(CommandArguments request) {
        try {
            return new Answer(ask(request, false, 0), false);
        } catch (JedisConnectionException failed) {
            try {
                // Those of the pool may all have broken.
                return new Answer(ask(request, true, 0), true);
            } finally {
                if (options.grace() == null) {
                    closeOwn();
                }
            }
        }
    }

    /** One request, which nothing repeats unseen; it follows its key to another node of a cluster. */
    private Object ask(CommandArguments request, boolean isAlone, long waitMs) {
        for (int redirections = 0; ; redirections++) {
            try {
                return isAlone || options.grace() != null ? askAlone(request, waitMs) : askPool(request);
            } catch (JedisMovedDataException moved) {
                if (redirections == REDIRECTIONS) {
                    throw moved;
                }
                closeOwn();
                locks.refresh.run();
            }
        }
    }

    private Object askPool(CommandArguments request) {
        try (Connection connection = locks.poolOf.apply(key).getResource()) {
            return connection.executeCommand(request);
        }
    }

    private synchronized Object askAlone(CommandArguments request, long waitMs) {
        try {
            if (own == null) {
                own = fresh(locks.poolOf.apply(key));
                if (options.grace() != null && fence != 0) {
                    own.executeCommand(request("LOCK.ATTACH", owner()));
                }
            }
            own.setSoTimeout((int) waitMs + PATIENCE_MS);
            return own.executeCommand(request);
        } catch (JedisConnectionException failed) {
            closeOwn();
            throw failed;
        }
    }

    /** As the pool would make it. */
    private static Connection fresh(Pool<Connection> pool) {
        try {
            return pool.getFactory().makeObject().getObject();
        } catch (JedisException failed) {
            throw failed;
        } catch (Exception failed) {
            throw new JedisConnectionException(failed);
        }
    }

    /** Waits in another thread, so that this one can be interrupted. */
    private Object waiting(CommandArguments request, long waitMs) throws InterruptedException {
        Future<Object> reply = THREADS.submit(() -> ask(request, true, waitMs));
        try {
            return reply.get();
        } catch (ExecutionException failed) {
            throw (RuntimeException) failed.getCause();
        } catch (InterruptedException interrupted) {
            endWait(reply);
            throw interrupted;
        }
    }

    private void endWait(Future<Object> reply) {
        while (true) {
            try {
                Connection waiting = own;
                if (waiting != null) {
                    waiting.forceDisconnect();
                }
                reply.get(5, TimeUnit.MILLISECONDS);
                return;
            } catch (TimeoutException | InterruptedException again) {
                // The wait had not begun.
            } catch (IOException | ExecutionException ended) {
                return;
            }
        }
    }

    private void closeOwn() {
        Connection connection = own;
        own = null;
        if (connection != null) {
            connection.close();
        }
    }

    static CommandArguments request(Object... words) {
        byte[] name = SafeEncoder.encode((String) words[0]);
        CommandArguments request = new CommandArguments(() -> name);
        for (int at = 1; at < words.length; at++) {
            request.add(words[at].toString());
        }
        return request;
    }

    static String text(Object word) {
        return word instanceof byte[] bytes ? SafeEncoder.encode(bytes) : (String) word;
    }
}
