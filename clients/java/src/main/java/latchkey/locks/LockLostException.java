package latchkey.locks;

/** The grant has ended: by its lease, its session, or somebody's hand. */
public final class LockLostException extends IllegalMonitorStateException {
    private static final long serialVersionUID = 1;

    LockLostException(String key, String owner) {
        super(key + " is no longer held by " + owner);
    }
}
