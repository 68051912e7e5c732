package latchkey.locks;

/** Others hold it, and the time to wait is over. */
public final class NotGrantedException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String holder;

    NotGrantedException(String key, String holder) {
        super(holder == null ? key + " is not free" : key + " is held by " + holder);
        this.holder = holder;
    }

    /** Who; null where others only stand in line before, and for permits. */
    public String holder() {
        return holder;
    }
}
