package latchkey.locks.shedlock;

import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import latchkey.locks.LockGrant;
import latchkey.locks.LockLostException;
import latchkey.locks.Locks;
import latchkey.locks.NotGrantedException;
import latchkey.locks.Options;
import net.javacrumbs.shedlock.core.AbstractSimpleLock;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;
import net.javacrumbs.shedlock.support.LockException;

/**
 * ShedLock's locks of scheduled tasks. lockAtMostFor is a lease, which only the server's clock ends; lockAtLeastFor keeps the lock after
 * its release.
 */
public final class LatchkeyLockProvider implements ExtensibleLockProvider {
    private final Locks locks;
    private final String prefix;

    /** Keys are `job-lock:` and the lock's name. */
    public LatchkeyLockProvider(Locks locks) {
        this(locks, "job-lock:");
    }

    /** Keys are the prefix and the lock's name. */
    public LatchkeyLockProvider(Locks locks, String prefix) {
        this.locks = locks;
        this.prefix = prefix;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration wanted) {
        Options options = Options.DEFAULT.withLease(wanted.getLockAtMostFor()).withWaiting(Duration.ZERO);
        try {
            return Optional.of(new Held(wanted, locks.acquire(prefix + wanted.getName(), options)));
        } catch (NotGrantedException refused) {
            return Optional.empty();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new LockException("interrupted while asking for " + wanted.getName(), interrupted);
        }
    }

    private static final class Held extends AbstractSimpleLock {
        private final LockGrant grant;

        Held(LockConfiguration configuration, LockGrant grant) {
            super(configuration);
            this.grant = grant;
        }

        @Override
        protected void doUnlock() {
            Instant now = ClockProvider.now();
            Instant least = lockConfiguration.getLockAtLeastUntil();
            try {
                grant.release(least.isAfter(now) ? Duration.between(now, least) : Duration.ZERO);
            } catch (LockLostException lost) {
                // The task took longer than lockAtMostFor: as with other providers, that is no error.
            }
        }

        @Override
        protected Optional<SimpleLock> doExtend(LockConfiguration wanted) {
            try {
                grant.renew(wanted.getLockAtMostFor());
                return Optional.of(new Held(wanted, grant));
            } catch (LockLostException lost) {
                return Optional.empty();
            }
        }
    }
}
