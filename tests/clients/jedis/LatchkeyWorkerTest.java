import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.RedisClient;

/** examples/java/LatchkeyWorker.java. */
@Timeout(60)
class LatchkeyWorkerTest {
    @Test
    void jobsForNowAndLaterAreDoneAndWhatFailsIsADeadLetter() throws Exception {
        try (Server server = new Server();
                RedisClient client = RedisClient.builder().hostAndPort("127.0.0.1", server.port).build()) {
            Assumptions.assumeFalse(client.configGet("redis-version").isEmpty(), "the server is another one");
            List<String> seen = new ArrayList<>();
            LatchkeyWorker worker = new LatchkeyWorker(client, "{jobs}", 30_000, 10, 2, fields -> {
                seen.add(fields.get("data"));
                if (fields.get("data").equals("bad")) {
                    throw new IllegalStateException("bad");
                }
            });
            client.xadd("{jobs}", Map.of("data", "bad"), redis.clients.jedis.params.XAddParams.xAddParams());
            client.zadd("{jobs}:later", System.currentTimeMillis() + 50, "later");
            while (worker.workOnce(500)) {
                // Until nothing is left.
            }
            seen.sort(null);
            assertEquals(List.of("bad", "bad", "later"), seen);
            assertEquals(0, client.xlen("{jobs}"));
            assertEquals(1, client.xlen("{jobs}:dead"));
        }
    }
}
