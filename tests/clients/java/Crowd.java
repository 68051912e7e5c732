import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Many threads side by side, and how many were inside of something at once. */
final class Crowd {
    interface Work {
        void run(int number) throws Exception;
    }

    final AtomicInteger entered = new AtomicInteger();
    final AtomicInteger most = new AtomicInteger();
    private final AtomicInteger inside = new AtomicInteger();

    void enter() {
        entered.incrementAndGet();
        int now = inside.incrementAndGet();
        most.accumulateAndGet(now, Math::max);
    }

    void leave() {
        inside.decrementAndGet();
    }

    /** Runs work 0 ... count - 1 in threads and throws what one of them threw. */
    static void sideBySide(int count, Work work) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(count);
        try {
            List<Future<?>> all = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                int mine = number;
                all.add(threads.submit(() -> {
                    work.run(mine);
                    return null;
                }));
            }
            for (Future<?> one : all) {
                one.get(60, TimeUnit.SECONDS);
            }
        } finally {
            threads.shutdownNow();
        }
    }

    /** What another thread gets: locks belong to threads. */
    static boolean elsewhere(Callable<Boolean> work) throws Exception {
        ExecutorService thread = Executors.newSingleThreadExecutor();
        try {
            return thread.submit(work).get(60, TimeUnit.SECONDS);
        } finally {
            thread.shutdownNow();
        }
    }

    static void until(Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (!condition.call()) {
            assertTrue(System.nanoTime() < deadline, "waited in vain");
            Thread.sleep(2);
        }
    }
}
