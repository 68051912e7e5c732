package latchkey.locks.spring;

import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.Map;
import latchkey.locks.LatchkeyLock;
import latchkey.locks.Locks;
import latchkey.locks.Options;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * Spring Integration's locks by key, for its aggregators, file filters, leaders and `executeLocked`. Each thread is an owner, and may
 * take a lock again.
 */
public final class LatchkeyLockRegistry implements RenewableLockRegistry<LatchkeyLock> {
    /** As many as RedisLockRegistry remembers unless it is told otherwise. */
    private static final int REMEMBERED = 100_000;

    private final Locks locks;
    private final String prefix;
    private final Options options;
    private final Map<String, LatchkeyLock> remembered = Collections.synchronizedMap(new LinkedHashMap<>(16, 0.75f, true) {
        private static final long serialVersionUID = 1;

        @Override
        protected boolean removeEldestEntry(Map.Entry<String, LatchkeyLock> eldest) {
            return size() > REMEMBERED;
        }
    });

    /** Keys are the prefix, a colon and the lock's key. Of the options, the lease and the grace of a session mean something here. */
    public LatchkeyLockRegistry(Locks locks, String prefix, Options options) {
        this.locks = locks;
        this.prefix = prefix;
        this.options = options;
    }

    /** The same lock for the same key, as its holds are counted in it. */
    @Override
    public LatchkeyLock obtain(Object key) {
        return remembered.computeIfAbsent(prefix + ":" + key, name -> new LatchkeyLock(locks, name, options));
    }

    /** Lets this thread's lease last as long as at first. Errors: IllegalMonitorStateException, LockLostException. */
    @Override
    public void renewLock(Object key) {
        obtain(key).grant().renew();
    }

    /** Lets this thread's lease last so long from now on, at least. */
    @Override
    public void renewLock(Object key, Duration lease) {
        obtain(key).grant().renew(lease);
    }
}
