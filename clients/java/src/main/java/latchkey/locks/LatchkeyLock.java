package latchkey.locks;

import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A lock as the Java library knows it. Each thread is an owner of its own and may take it again: holds are counted here, so that a
 * request may be repeated. Whoever relies on the first hold gets no second one if the lock was lost in between.
 */
public final class LatchkeyLock implements Lock {
    private final Locks locks;
    private final String key;
    private final Options options;
    private final ThreadLocal<Holding> mine = new ThreadLocal<>();

    private static final class Holding {
        final LockGrant grant;
        int holds = 1;

        Holding(LockGrant grant) {
            this.grant = grant;
        }
    }

    /** Of the options, the time to wait and the owner mean nothing here. */
    public LatchkeyLock(Locks locks, String key, Options options) {
        this.locks = locks;
        this.key = key;
        this.options = options.withOwner(null);
    }

    /** This thread's grant. IllegalMonitorStateException: it has none. */
    public LockGrant grant() {
        if (mine.get() == null) {
            throw new IllegalMonitorStateException("this thread does not hold the lock " + key);
        }
        return mine.get().grant;
    }

    @Override
    public boolean tryLock() {
        boolean isInterrupted = Thread.interrupted();
        try {
            return take(Duration.ZERO);
        } catch (InterruptedException unlikely) {
            // It came in the moment of the question. It is kept for later, as tryLock() is not ended by it.
            isInterrupted = true;
            return false;
        } finally {
            if (isInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        return take(Duration.ofNanos(Math.max(0, unit.toNanos(time))));
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        take(null);
    }

    @Override
    public void lock() {
        boolean isInterrupted = false;
        while (true) {
            try {
                take(null);
                break;
            } catch (InterruptedException again) {
                isInterrupted = true;
            }
        }
        if (isInterrupted) {
            Thread.currentThread().interrupt();
        }
    }

    /** Gives one hold back. IllegalMonitorStateException: this thread has none; LockLostException: it has lost it. */
    @Override
    public void unlock() {
        LockGrant grant = grant();
        if (--mine.get().holds == 0) {
            mine.remove();
            grant.release();
        }
    }

    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lock of several processes has no conditions");
    }

    private boolean take(Duration waiting) throws InterruptedException {
        Holding holding = mine.get();
        if (holding != null) {
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            try {
                holding.grant.renew();
            } catch (LockLostException lost) {
                mine.remove();
                throw lost;
            }
            holding.holds++;
            return true;
        }
        try {
            mine.set(new Holding(locks.acquire(key, options.withWaiting(waiting))));
            return true;
        } catch (NotGrantedException refused) {
            return false;
        }
    }
}
