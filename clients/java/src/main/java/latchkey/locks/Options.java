package latchkey.locks;

import java.time.Duration;
import java.util.UUID;

/**
 * How something is acquired. Each method gives other options.
 *
 * @param lease after so long it ends, unless it is renewed
 * @param waiting how long to wait in the server's queue; null: for ever, zero: not at all
 * @param shared for reading, beside other readers
 * @param grace a session: it ends so long after its connection has closed, and the lease counts from the last request over it; or null
 * @param owner who asks; whoever asks with the same name gets the same grant; null: a random name for each acquisition
 * @param count how many permits are taken together
 */
public record Options(Duration lease, Duration waiting, boolean shared, Duration grace, String owner, int count) {
    /** A lease of 30 seconds, for which it waits for ever. */
    public static final Options DEFAULT = new Options(Duration.ofSeconds(30), null, false, null, null, 1);

    public Options withLease(Duration other) {
        return new Options(other, waiting, shared, grace, owner, count);
    }

    public Options withWaiting(Duration other) {
        return new Options(lease, other, shared, grace, owner, count);
    }

    public Options withShared(boolean other) {
        return new Options(lease, waiting, other, grace, owner, count);
    }

    public Options withGrace(Duration other) {
        return new Options(lease, waiting, shared, other, owner, count);
    }

    public Options withOwner(String other) {
        return new Options(lease, waiting, shared, grace, other, count);
    }

    public Options withCount(int other) {
        return new Options(lease, waiting, shared, grace, owner, other);
    }

    Options withSomeOwner() {
        // Of the system's random source.
        return owner == null ? withOwner(UUID.randomUUID().toString()) : this;
    }
}
