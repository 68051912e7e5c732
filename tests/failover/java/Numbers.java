import java.time.Instant;
import java.time.temporal.ChronoUnit;

/**
 * Numbered writes, one after the other: standard output has each acknowledged number with its time (Unix, in microseconds), standard
 * error each error. They end with standard input.
 */
final class Numbers {
    interface Write {
        void set(String key, String value) throws Exception;
    }

    private Numbers() {}

    static void write(String client, Write write) throws Exception {
        long number = 0;
        while (System.in.available() == 0) {
            try {
                write.set(client + ":" + number, Long.toString(number));
                System.out.println(number + " " + now());
                number++;
                Thread.sleep(1);
            } catch (RuntimeException error) {
                System.err.println(number + " " + now() + " " + error);
                Thread.sleep(20);
            }
        }
        System.exit(0);
    }

    private static long now() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }
}
