import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.StreamEntryID;
import redis.clients.jedis.args.ListDirection;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisNoScriptException;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.params.XReadGroupParams;
import redis.clients.jedis.params.ZAddParams;
import redis.clients.jedis.resps.StreamEntry;

/** Jedis: connections from a pool, pipelines, transactions, scripts, messages and blocking commands. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
@Timeout(60)
class JedisTest {
    private Server server;
    private RedisClient client;

    RedisProtocol protocol() {
        return RedisProtocol.RESP2;
    }

    private DefaultJedisClientConfig config() {
        return DefaultJedisClientConfig.builder()
            .protocol(protocol())
            .timeoutMillis(30_000)
            .blockingSocketTimeoutMillis(50_000)
            .clientName("jedis")
            .build();
    }

    private Jedis connect() {
        return new Jedis(new HostAndPort("127.0.0.1", server.port), config());
    }

    @BeforeAll
    void start() throws Exception {
        server = new Server();
        ConnectionPoolConfig pool = new ConnectionPoolConfig();
        pool.setMaxTotal(8);
        pool.setTestOnBorrow(true);
        client = RedisClient.builder().hostAndPort("127.0.0.1", server.port).clientConfig(config()).poolConfig(pool).build();
    }

    @AfterAll
    void stop() throws Exception {
        client.close();
        server.close();
    }

    @BeforeEach
    void clear() {
        client.flushAll();
    }

    @Test
    void threadsShareAPool() throws Exception {
        Crowd.sideBySide(20, number -> {
            for (int round = 0; round < 50; round++) {
                client.incr("n");
                client.hincrBy("h", Integer.toString(number), 1);
            }
        });
        assertEquals("1000", client.get("n"));
        assertEquals(20, client.hlen("h"));
        assertTrue(client.hvals("h").stream().allMatch("50"::equals));
        try (Jedis jedis = connect()) {
            assertEquals("jedis", jedis.clientGetname());
            assertTrue(jedis.clientList().lines().count() <= 9, "more connections than the pool may have");
        }
    }

    @Test
    void pipelinesKeepTheirOrderAndTheirErrors() {
        try (AbstractPipeline pipeline = client.pipelined()) {
            List<Response<String>> replies = new ArrayList<>();
            for (int n = 0; n < 1000; n++) {
                pipeline.set("k" + n, Integer.toString(n));
                replies.add(pipeline.get("k" + n));
            }
            Response<Long> pushed = pipeline.rpush("list", "a", "b");
            Response<Long> wrong = pipeline.incr("list");
            Response<Map<String, String>> hash = pipeline.hgetAll("none");
            Response<Double> score = pipeline.zaddIncr("z", 1.5, "m", ZAddParams.zAddParams().xx());
            pipeline.sync();
            for (int n = 0; n < 1000; n++) {
                assertEquals(Integer.toString(n), replies.get(n).get());
            }
            assertEquals(2, pushed.get());
            JedisDataException error = assertThrows(JedisDataException.class, wrong::get);
            assertEquals("WRONGTYPE Operation against a key holding the wrong kind of value", error.getMessage());
            assertEquals(Map.of(), hash.get());
            assertNull(score.get());
        }
    }

    @Test
    void aWatchedKeyThatChangesUndoesATransaction() throws Exception {
        try (AbstractTransaction transaction = client.transaction(false)) {
            transaction.watch("n");
            client.set("n", "1");
            transaction.multi();
            transaction.incr("n");
            assertNull(transaction.exec());
            transaction.watch("n");
            transaction.unwatch();
            client.set("n", "5");
            transaction.multi();
            Response<Long> added = transaction.incr("n");
            assertEquals(List.of(6L), transaction.exec());
            assertEquals(6, added.get());
            transaction.multi();
            transaction.set("n", "7");
            assertEquals("OK", transaction.discard());
        }
        assertEquals("6", client.get("n"));

        Crowd.sideBySide(6, number -> {
            for (int added = 0; added < 10; ) {
                try (AbstractTransaction transaction = client.transaction(false)) {
                    transaction.watch("total");
                    String total = client.get("total");
                    transaction.multi();
                    transaction.set("total", Integer.toString(total == null ? 1 : Integer.parseInt(total) + 1));
                    if (transaction.exec() != null) {
                        added++;
                    }
                }
            }
        });
        assertEquals("60", client.get("total"));
    }

    @Test
    void aScriptIsSentWhereItIsUnknown() {
        String text = "return {KEYS[1], ARGV[1], 3.9, redis.status_reply('FINE')}";
        String digest = client.scriptLoad(text, "k");
        assertEquals(40, digest.length());
        assertEquals("OK", client.scriptFlush("k"));
        assertEquals(false, client.scriptExists(digest, "k"));
        JedisNoScriptException error = assertThrows(JedisNoScriptException.class, () -> client.evalsha(digest, List.of("k"), List.of("v")));
        assertEquals("NOSCRIPT No matching script. Please use EVAL.", error.getMessage());
        Object reply = client.eval(text, List.of("k"), List.of("v"));
        assertEquals(List.of("k", "v", 3L, "FINE"), reply);
        assertEquals(reply, client.evalsha(digest, List.of("k"), List.of("v")));
        assertEquals(true, client.scriptExists(digest, "k"));
        assertNull(client.eval("return redis.call('GET', KEYS[1])", List.of("none"), List.of()));
        client.rpush("list", "x");
        assertTrue(assertThrows(JedisDataException.class, () -> client.eval("return redis.call('INCR', KEYS[1])", 1, "list"))
            .getMessage().startsWith("WRONGTYPE Operation against a key holding the wrong kind of value"));
    }

    @Test
    void aLockHasOneOwner() throws Exception {
        String release = client.scriptLoad(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0", "lock");
        Crowd crowd = new Crowd();
        Crowd.sideBySide(20, number -> {
            for (int round = 0; round < 5; round++) {
                String token = UUID.randomUUID().toString();
                while (client.set("lock", token, SetParams.setParams().nx().px(60_000)) == null) {
                    Thread.sleep(1);
                }
                crowd.enter();
                client.incr("work");
                crowd.leave();
                assertEquals(1L, client.evalsha(release, List.of("lock"), List.of(token)));
            }
        });
        assertEquals(List.of(100, 1), List.of(crowd.entered.get(), crowd.most.get()));
        assertEquals(0L, client.evalsha(release, List.of("lock"), List.of("another's")));
    }

    @Test
    void listenersAreToldWhatChannelAndPatternItWas() throws Exception {
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        JedisPubSub listener = new JedisPubSub() {
            @Override
            public void onSubscribe(String channel, int count) {
                heard.add("subscribe " + channel + " " + count);
            }

            @Override
            public void onPSubscribe(String pattern, int count) {
                heard.add("psubscribe " + pattern + " " + count);
            }

            @Override
            public void onMessage(String channel, String message) {
                heard.add("message " + channel + " " + message);
            }

            @Override
            public void onPMessage(String pattern, String channel, String message) {
                heard.add("pmessage " + pattern + " " + channel + " " + message);
            }

            @Override
            public void onPUnsubscribe(String pattern, int count) {
                heard.add("punsubscribe " + pattern + " " + count);
            }

            @Override
            public void onUnsubscribe(String channel, int count) {
                heard.add("unsubscribe " + channel + " " + count);
            }

            @Override
            public void onPong(String text) {
                heard.add("pong " + text);
            }
        };
        CompletableFuture<Void> listening = CompletableFuture.runAsync(() -> client.subscribe(listener, "news", "mail"));
        expect(heard, "subscribe news 1", "subscribe mail 2");
        listener.psubscribe("n?ws", "[m-o]*");
        expect(heard, "psubscribe n?ws 3", "psubscribe [m-o]* 4");
        assertEquals(3, client.publish("news", "hello"));
        expect(heard, "message news hello");
        List<String> patterns = new ArrayList<>(List.of(next(heard), next(heard)));
        Collections.sort(patterns);
        assertEquals(List.of("pmessage [m-o]* news hello", "pmessage n?ws news hello"), patterns);
        assertEquals(1, client.publish("old", "nobody"));
        expect(heard, "pmessage [m-o]* old nobody");
        if (protocol() == RedisProtocol.RESP2) {
            // By RESP3 this is a reply like any other, which the library does not hand on.
            listener.ping("there?");
            expect(heard, "pong there?");
        }
        try (Jedis jedis = connect()) {
            assertEquals(Map.of("news", 1L, "none", 0L), jedis.pubsubNumSub("news", "none"));
            assertEquals(2, jedis.pubsubNumPat());
            assertEquals(List.of("mail"), jedis.pubsubChannels("m*"));
        }
        listener.punsubscribe("n?ws");
        expect(heard, "punsubscribe n?ws 3");
        listener.punsubscribe("[m-o]*");
        listener.unsubscribe("news");
        listener.unsubscribe("mail");
        expect(heard, "punsubscribe [m-o]* 2", "unsubscribe news 1", "unsubscribe mail 0");
        listening.get(40, TimeUnit.SECONDS);
        assertTrue(heard.isEmpty());
    }

    private static String next(BlockingQueue<String> heard) throws InterruptedException {
        return heard.poll(40, TimeUnit.SECONDS);
    }

    private static void expect(BlockingQueue<String> heard, String... wanted) throws InterruptedException {
        for (String one : wanted) {
            assertEquals(one, next(heard));
        }
    }

    @Test
    void poppersWaitForItems() throws Exception {
        List<String> taken = Collections.synchronizedList(new ArrayList<>());
        Crowd.sideBySide(4, number -> {
            if (number == 0) {
                for (int item = 0; item < 100; item++) {
                    client.rpush("queue", Integer.toString(item));
                }
                client.rpush("queue", "stop", "stop", "stop");
                return;
            }
            for (String item; !(item = client.blpop(40.0, "none", "queue").getValue()).equals("stop"); ) {
                taken.add(item);
            }
        });
        assertEquals(List.of(100L, 100L), List.of(taken.stream().distinct().count(), (long) taken.size()));
        assertNull(client.blpop(0.02, "none"));

        Crowd.sideBySide(2, number -> {
            if (number == 0) {
                assertEquals("x", client.blmove("from", "to", ListDirection.LEFT, ListDirection.RIGHT, 40));
                assertEquals(2.5, client.bzpopmax(40, "jobs").getValue().getScore());
            } else {
                client.rpush("from", "x");
                client.zadd("jobs", Map.of("only", 2.5));
            }
        });
        assertEquals(List.of("x"), client.lrange("to", 0, -1));
    }

    @Test
    void aGroupSharesAStream() {
        client.xgroupCreate("events", "group", StreamEntryID.XGROUP_LAST_ENTRY, true);
        StreamEntryID id = client.xadd("events", StreamEntryID.NEW_ENTRY, Map.of("field", "value"));
        List<Map.Entry<String, List<StreamEntry>>> read = client.xreadGroup("group", "one", XReadGroupParams.xReadGroupParams().count(10).block(1000),
            Map.of("events", StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY));
        assertEquals("events", read.get(0).getKey());
        StreamEntry entry = read.get(0).getValue().get(0);
        assertEquals(id, entry.getID());
        assertEquals(Map.of("field", "value"), entry.getFields());
        assertEquals(1, client.xpending("events", "group").getTotal());
        assertEquals(1, client.xack("events", "group", id));
        assertEquals(0, client.xinfoGroups("events").get(0).getPending());
        JedisDataException error = assertThrows(JedisDataException.class, () -> client.xreadGroup("nobody", "one",
            XReadGroupParams.xReadGroupParams(), Map.of("events", StreamEntryID.XREADGROUP_UNDELIVERED_ENTRY)));
        assertEquals("NOGROUP No such key 'events' or consumer group 'nobody' in XREADGROUP with GROUP option", error.getMessage());
    }
}
