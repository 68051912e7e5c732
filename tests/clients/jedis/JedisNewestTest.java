import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HashImport;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.args.HotkeysMetric;
import redis.clients.jedis.args.ListDirection;
import redis.clients.jedis.args.ListMoveOrder;
import redis.clients.jedis.args.StreamDeletionPolicy;
import redis.clients.jedis.args.XNackMode;
import redis.clients.jedis.params.HGetExParams;
import redis.clients.jedis.params.HSetExParams;
import redis.clients.jedis.params.HotkeysParams;
import redis.clients.jedis.params.IncrexFloatParams;
import redis.clients.jedis.params.IncrexParams;
import redis.clients.jedis.params.LMoveMParams;
import redis.clients.jedis.params.MSetExParams;
import redis.clients.jedis.params.SDiffCardParams;
import redis.clients.jedis.params.SUnionCardParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.params.XAddParams;
import redis.clients.jedis.params.XCfgSetParams;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.params.ZParams;
import redis.clients.jedis.resps.StreamEntry;
import redis.clients.jedis.resps.StreamEntryDeletionResult;
import redis.clients.jedis.util.CompareCondition;

/** What Jedis's newest methods send and make of the replies, in both protocols. */
@Timeout(60)
class JedisNewestTest {
    @ParameterizedTest
    @EnumSource(value = RedisProtocol.class, names = {"RESP2", "RESP3"})
    void theNewestMethodsWork(RedisProtocol protocol) throws Exception {
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder().protocol(protocol).build();
        try (Server server = new Server();
                RedisClient client = RedisClient.builder().hostAndPort("127.0.0.1", server.port).clientConfig(config).build()) {
            strings(client);
            collections(client);
            streams(client);
            client.hotkeysStart(HotkeysParams.hotkeysParams().metrics(HotkeysMetric.CPU, HotkeysMetric.NET));
            client.incr("hot");
            client.hotkeysStop();
            assertTrue(client.hotkeysGet().getByCpuTimeUs().containsKey("hot"));
            client.hotkeysReset();
        }
    }

    private static void strings(RedisClient client) {
        client.set("k", "v");
        String digest = client.digestKey("k");
        assertNull(client.set("k", "w", SetParams.setParams().condition(CompareCondition.valueNe("v"))));
        assertEquals("OK", client.set("k", "w", SetParams.setParams().condition(CompareCondition.digestEq(digest))));
        assertEquals(0, client.delex("k", CompareCondition.valueEq("v")));
        assertEquals(1, client.delex("k", CompareCondition.digestNe(digest)));
        assertTrue(client.msetex(MSetExParams.setParams().nx().ex(100), "a", "1", "b", "2"));
        assertTrue(client.ttl("b") > 90);
        IncrexParams bounded = IncrexParams.increxParams().ubound(5);
        assertEquals(List.of(3L, 3L), client.increx("n", 3, bounded));
        assertEquals(List.of(3L, 0L), client.increx("n", 3, bounded));
        assertEquals(List.of(5L, 2L), client.increx("n", 3, bounded.saturate()));
        assertEquals(List.of(5.5, 0.5), client.increx("n", 0.5, IncrexFloatParams.increxFloatParams()));
    }

    private static void collections(RedisClient client) {
        client.rpush("l", "1", "2", "3", "4");
        assertEquals(List.of("1"), client.lmovem("l", "m", ListDirection.LEFT, ListDirection.RIGHT));
        LMoveMParams two = LMoveMParams.lMoveMParams().exactly(2, ListMoveOrder.BULK);
        assertEquals(List.of("2", "3"), client.lmovem("l", "m", ListDirection.LEFT, ListDirection.LEFT, two));
        assertEquals(List.of("4"), client.blmovem("l", "m", ListDirection.LEFT, ListDirection.LEFT, 1));
        client.sadd("s", "a", "b");
        client.sadd("t", "b", "c");
        assertEquals(3, client.sunioncard(List.of("s", "t"), SUnionCardParams.sUnionCardParams().limit(9)));
        assertEquals(1, client.sdiffcard(List.of("s", "t"), SDiffCardParams.sDiffCardParams()));
        client.zadd("y", Map.of("a", 5.0, "b", 7.0));
        client.zadd("z", 9, "b");
        assertEquals(2, client.zunionstore("d", new ZParams().aggregate(ZParams.Aggregate.COUNT).weights(2, 3), "y", "z"));
        assertEquals(5, client.zscore("d", "b"));

        assertEquals(1, client.hsetex("h", HSetExParams.hSetExParams().ex(100), Map.of("f", "v", "g", "w")));
        assertEquals(List.of("v"), client.hgetex("h", HGetExParams.hGetExParams().persist(), "f"));
        assertEquals(List.of("v", "w"), client.hgetdel("h", "f", "g"));
        try (HashImport fields = HashImport.of("name", "age")) {
            assertEquals("OK", client.himportSet("user:1", fields, "ann", "30"));
        }
        assertEquals(Map.of("name", "ann", "age", "30"), client.hgetAll("user:1"));
    }

    private static void streams(RedisClient client) {
        Map<String, String> fields = Map.of("f", "v");
        StreamEntryID first = client.xadd("x", XAddParams.xAddParams().idmp("p", "1"), fields);
        assertEquals(first, client.xadd("x", XAddParams.xAddParams().idmp("p", "1"), fields));
        StreamEntryID second = client.xadd("x", XAddParams.xAddParams().idmpAuto("p"), fields);
        assertEquals(second, client.xadd("x", XAddParams.xAddParams().idmpAuto("p"), fields));
        assertEquals("OK", client.xcfgset("x", XCfgSetParams.xCfgSetParams().idmpDuration(10).idmpMaxsize(5)));
        client.xgroupCreate("x", "g", new StreamEntryID("0-0"), false);
        Map<String, StreamEntryID> rest = Map.of("x", StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY);
        client.xreadGroup("g", "dead", XReadGroupParams.xReadGroupParams().maxCount(1), rest);
        assertEquals(1, client.xnack("x", "g", XNackMode.FAIL, first));
        StreamEntry taken = client.xreadGroup("g", "heir", XReadGroupParams.xReadGroupParams().claim(60_000).count(1), rest)
            .get(0).getValue().get(0);
        assertEquals(first, taken.getID());
        assertEquals(List.of(StreamEntryDeletionResult.DELETED, StreamEntryDeletionResult.NOT_FOUND),
            client.xackdel("x", "g", StreamDeletionPolicy.DELETE_REFERENCES, first, new StreamEntryID("7-7")));
        assertEquals(1, client.xdelex("x", StreamDeletionPolicy.ACKNOWLEDGED, second).size());
    }
}
