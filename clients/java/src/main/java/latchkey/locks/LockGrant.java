package latchkey.locks;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.CommandArguments;

/** A lock that is held, several of them, or a reader's part of one. */
public final class LockGrant extends Grant {
    private final List<String> keys;

    LockGrant(Locks locks, List<String> keys, Options options) {
        super(locks, keys.get(0), options);
        this.keys = List.copyOf(keys);
    }

    public List<String> keys() {
        return keys;
    }

    /** Whether the server still says so. */
    public boolean held() {
        return keys.stream().allMatch(key -> twice(guard(key)).reply().equals(1L));
    }

    /** Adds guards to a transaction: unless this grant is held then, it does nothing, and exec() gives null. */
    public void guard(AbstractTransaction transaction) {
        keys.forEach(key -> transaction.sendCommand(guard(key)));
    }

    private CommandArguments guard(String key) {
        return new CommandArguments(request("LOCK.GUARD").getCommand()).key(key).add(owner()).add("FENCE").add(fence);
    }

    private List<Object> keysAfter(String name) {
        List<Object> words = new ArrayList<>(List.of(name, keys.size()));
        words.addAll(keys);
        words.add(owner());
        return words;
    }

    @Override
    List<Object> question() {
        List<Object> words = keys.size() > 1 ? keysAfter("LOCK.MACQUIRE") : new ArrayList<>(List.of("LOCK.ACQUIRE", key, owner()));
        words.addAll(List.of("PX", options.lease().toMillis()));
        if (options.shared()) {
            words.add("SHARED");
        }
        return words;
    }

    @Override
    long read(List<?> reply) {
        fence = (Long) reply.get(0);
        return (Long) reply.get(reply.size() - 1);
    }

    @Override
    String holder(List<?> reply) {
        String holder = text(reply.get(3));
        return holder.isEmpty() ? null : holder;
    }

    @Override
    void renewAll(long leaseMs) {
        List<Object> words = keysAfter("LOCK.RENEW");
        words.addAll(List.of("PX", leaseMs));
        if (!twice(request(words.toArray())).reply().equals(Collections.nCopies(keys.size(), fence))) {
            throw lost();
        }
    }

    @Override
    boolean releaseAll(long keepMs) {
        boolean isLost = false;
        for (String one : keys) {
            List<Object> words = new ArrayList<>(List.of("LOCK.RELEASE", one, owner()));
            if (fence != 0) {
                words.addAll(List.of("FENCE", fence));
            }
            if (keepMs > 0) {
                words.addAll(List.of("KEEP", keepMs));
            }
            // Where it was repeated, the first may have done it, and what the second says of a loss means nothing.
            Answer answer = twice(request(words.toArray()));
            isLost |= !answer.isRepeated() && (Long) answer.reply() < 0;
        }
        return isLost;
    }
}
