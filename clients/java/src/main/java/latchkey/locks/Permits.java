package latchkey.locks;

import java.util.ArrayList;
import java.util.List;

/** Permits of one request that are held. */
public final class Permits extends Grant {
    private final int limit;
    private volatile List<String> permits = List.of();
    private volatile long free;

    Permits(Locks locks, String key, int limit, Options options) {
        super(locks, key, options);
        this.limit = limit;
    }

    public List<String> permits() {
        return permits;
    }

    /** How many were free after the grant. */
    public long free() {
        return free;
    }

    @Override
    List<Object> question() {
        return new ArrayList<>(List.of("SEM.ACQUIRE", key, owner(), "LIMIT", limit, "PX", options.lease().toMillis(), "COUNT", options.count()));
    }

    @Override
    long read(List<?> reply) {
        permits = ((List<?>) reply.get(0)).stream().map(Grant::text).toList();
        fence = (Long) reply.get(1);
        free = (Long) reply.get(2);
        return options.lease().toMillis();
    }

    @Override
    String holder(List<?> reply) {
        return null;
    }

    @Override
    void renewAll(long leaseMs) {
        for (String permit : permits) {
            if (!twice(request("SEM.RENEW", key, permit, "PX", leaseMs)).reply().equals(1L)) {
                throw lost();
            }
        }
    }

    @Override
    boolean releaseAll(long keepMs) {
        List<Object> words = new ArrayList<>(List.of("SEM.RELEASE", key));
        words.addAll(permits);
        Answer answer = twice(request(words.toArray()));
        return !answer.isRepeated() && (Long) answer.reply() < permits.size();
    }

    @Override
    void abandon() {
        // Their names are known by asking again.
        List<?> reply = (List<?>) twice(request(question().toArray())).reply();
        if (!reply.get(0).equals(0L)) {
            read(reply);
            super.abandon();
        }
    }
}
