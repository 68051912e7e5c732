import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Hand-overs of Redisson's RLock: {@code Handover PORT WAITERS ROUNDS SECONDS}, as benches/peers/src/locks.rs asks for. Each
 * thread takes the lock, gives it back, and asks again when somebody else has it. The threads share ten clients at most.
 */
final class Handover {
    private static final int CLIENTS = 10;

    private static final List<Long> TIMES = Collections.synchronizedList(new ArrayList<>());
    private static final Object CHANGED = new Object();
    private static final CountDownLatch BEGIN = new CountDownLatch(1);
    private static volatile long releasedAt;
    private static long turn;

    private Handover() {
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        int waiters = Integer.parseInt(arguments[1]);
        int rounds = Integer.parseInt(arguments[2]);
        long seconds = Long.parseLong(arguments[3]);
        List<RedissonClient> clients = new ArrayList<>();
        for (int number = 0; number < Math.min(CLIENTS, waiters + 1); number++) {
            clients.add(connect(port));
        }
        for (int number = 0; number <= waiters; number++) {
            RLock lock = clients.get(number % clients.size()).getLock("lock");
            Thread thread = new Thread(() -> takeTurns(lock));
            thread.setDaemon(true);
            thread.start();
        }
        TimeUnit.SECONDS.sleep(3);
        System.out.println("ready");
        System.in.read();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        BEGIN.countDown();
        while (TIMES.size() < rounds && System.nanoTime() < end) {
            TimeUnit.MILLISECONDS.sleep(10);
        }
        StringBuilder text = new StringBuilder();
        synchronized (TIMES) {
            TIMES.stream().limit(rounds).forEach(ns -> text.append(ns).append('\n'));
        }
        System.out.println(text);
        TimeUnit.SECONDS.sleep(60);
    }

    private static RedissonClient connect(int port) {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port).setTimeout(60_000);
        return Redisson.create(config);
    }

    private static void takeTurns(RLock lock) {
        try {
            while (true) {
                // A lease longer than a run, as for the others: no watchdog.
                lock.lock(1, TimeUnit.HOURS);
                long now = System.nanoTime();
                long mine;
                synchronized (CHANGED) {
                    mine = ++turn;
                    CHANGED.notifyAll();
                }
                BEGIN.await();
                if (releasedAt != 0) {
                    TIMES.add(now - releasedAt);
                }
                releasedAt = System.nanoTime();
                lock.unlock();
                synchronized (CHANGED) {
                    while (turn == mine) {
                        CHANGED.wait();
                    }
                }
            }
        } catch (InterruptedException end) {
            Thread.currentThread().interrupt();
        }
    }
}
