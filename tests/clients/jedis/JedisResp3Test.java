import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.csc.CacheConfig;
import redis.clients.jedis.exceptions.JedisDataException;

/** The same by the newer protocol, and what only that has: a cache of the client's that the server keeps true. */
class JedisResp3Test extends JedisTest {
    @Override
    RedisProtocol protocol() {
        return RedisProtocol.RESP3;
    }

    @Test
    void theClientsCacheIsTold() throws Exception {
        try (Server server = new Server(); RedisClient writer = RedisClient.create("127.0.0.1", server.port)) {
            try {
                // The library asks for a later version than the server calls itself by default.
                writer.configSet("redis-version", "7.4.0");
            } catch (JedisDataException notOurs) {
                Assumptions.abort("the server's version is what it is");
            }
            cacheIsTold(server, writer);
        }
    }

    private static void cacheIsTold(Server server, RedisClient writer) throws Exception {
        try (RedisClient reader = RedisClient.builder().hostAndPort("127.0.0.1", server.port)
                .clientConfig(DefaultJedisClientConfig.builder().resp3().build())
                .cacheConfig(CacheConfig.builder().maxSize(100).build()).build()) {
            writer.set("k", "old");
            assertEquals("old", reader.get("k"));
            assertEquals("old", reader.get("k"));
            assertEquals(1, reader.getCache().getStats().getHitCount());
            writer.set("k", "new");
            Crowd.until(() -> reader.get("k").equals("new"));
            writer.flushAll();
            Crowd.until(() -> reader.get("k") == null);
        }
    }
}
