import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.FileReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import latchkey.locks.Grant;
import latchkey.locks.Limit;
import latchkey.locks.LockGrant;
import latchkey.locks.LockLostException;
import latchkey.locks.Locks;
import latchkey.locks.NotGrantedException;
import latchkey.locks.Options;
import latchkey.locks.Permits;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.JedisClusterCRC16;

/** The table of cases by latchkey-locks for Java: each case over each kind of client. */
public final class Table {
    private static final class Own extends Exception {
        private static final long serialVersionUID = 1;
    }

    private final String tag;
    private final UnifiedJedis client;
    private final Locks locks;
    private final Map<String, Grant> grants = new HashMap<>();
    private final Map<String, CompletableFuture<Void>> begun = new HashMap<>();
    private final Map<String, Thread> threads = new HashMap<>();
    private final Map<String, CountDownLatch> told = new HashMap<>();

    private Table(String tag, UnifiedJedis client, Locks locks) {
        this.tag = tag;
        this.client = client;
        this.locks = locks;
    }

    private static void check(boolean holds, JsonObject step, Object found) {
        if (!holds) {
            throw new AssertionError(step + ": " + found);
        }
    }

    private void run(JsonObject step) {
        String error = null;
        Throwable failed = null;
        Grant granted = null;
        try {
            granted = perform(step);
        } catch (NotGrantedException refused) {
            error = "not granted";
            failed = refused;
        } catch (LockLostException lost) {
            error = "lost";
            failed = lost;
        } catch (Own own) {
            error = "own";
            failed = own;
        } catch (InterruptedException interrupted) {
            error = "cancelled";
            failed = interrupted;
        } catch (JedisException server) {
            error = "server";
            failed = server;
        } catch (Exception other) {
            throw new AssertionError(step + ": " + other, other);
        }
        String expected = step.has("error") ? step.get("error").getAsString() : null;
        check(java.util.Objects.equals(expected, error), step, failed);
        if (step.has("holder")) {
            String holder = step.get("holder").isJsonNull() ? null : grants.get(step.get("holder").getAsString()).owner();
            check(java.util.Objects.equals(((NotGrantedException) failed).holder(), holder), step, failed);
        }
        if (step.has("besides")) {
            check(failed.getSuppressed()[0] instanceof LockLostException, step, failed);
        }
        if (granted == null) {
            return;
        }
        if (step.has("above")) {
            check(granted.fence() > grants.get(step.get("above").getAsString()).fence(), step, granted.fence());
        }
        if (step.has("same")) {
            check(granted.fence() == grants.get(step.get("same").getAsString()).fence(), step, granted.fence());
        }
        if (step.has("free")) {
            Permits permits = (Permits) granted;
            int count = step.has("count") ? step.get("count").getAsInt() : 1;
            check(permits.free() == step.get("free").getAsInt() && permits.permits().size() == count, step, permits.free());
        }
        grants.put(step.get("as").getAsString(), granted);
    }

    private Options options(JsonObject step) {
        Options options = Options.DEFAULT;
        options = step.has("lease") ? options.withLease(duration(step, "lease")) : options;
        options = step.has("wait") ? options.withWaiting(duration(step, "wait")) : options;
        options = step.has("grace") ? options.withGrace(duration(step, "grace")) : options;
        options = step.has("owner") ? options.withOwner(grants.get(step.get("owner").getAsString()).owner()) : options;
        options = step.has("count") ? options.withCount(step.get("count").getAsInt()) : options;
        return options.withShared(step.has("shared"));
    }

    private static Duration duration(JsonObject step, String name) {
        return Duration.ofMillis(step.get(name).getAsLong());
    }

    private List<String> keys(JsonObject step) {
        List<String> keys = new ArrayList<>();
        step.getAsJsonArray("keys").forEach(key -> keys.add(tag + key.getAsString()));
        return keys;
    }

    private long number(JsonObject step, String name, long otherwise) {
        return step.has(name) ? step.get(name).getAsLong() : otherwise;
    }

    private Grant perform(JsonObject step) throws Exception {
        Grant grant = step.has("of") ? grants.get(step.get("of").getAsString()) : null;
        String of = step.has("of") ? step.get("of").getAsString() : null;
        boolean is = step.has("is") && step.get("is").getAsBoolean();
        switch (step.get("do").getAsString()) {
            case "acquire":
                return locks.acquire(keys(step), options(step));
            case "permits":
                return locks.permits(tag + step.get("key").getAsString(), step.get("limit").getAsInt(), options(step));
            case "begin":
                JsonObject inner = step.getAsJsonObject("step");
                String as = inner.get("as").getAsString();
                begun.put(as, CompletableFuture.runAsync(() -> run(inner), task -> {
                    threads.put(as, new Thread(task));
                    threads.get(as).start();
                }));
                break;
            case "cancel":
                threads.get(of).interrupt();
                break;
            case "end":
                try {
                    begun.get(of).get(20, TimeUnit.SECONDS);
                } catch (ExecutionException failed) {
                    throw new AssertionError(step + ": " + failed.getCause());
                }
                break;
            case "renew":
                if (step.has("lease")) {
                    grant.renew(duration(step, "lease"));
                } else {
                    grant.renew();
                }
                break;
            case "release":
                grant.release(step.has("keep") ? duration(step, "keep") : Duration.ZERO);
                break;
            case "held":
                check(((LockGrant) grant).held() == is, step, !is);
                break;
            case "attach":
                check(grant.attach() == is, step, !is);
                break;
            case "left":
                long left = grant.left().toMillis();
                check(left > number(step, "above", -1) && left < number(step, "below", Long.MAX_VALUE), step, left);
                break;
            case "guarded":
                String key = tag + step.get("key").getAsString();
                try (AbstractTransaction transaction = transaction(key)) {
                    ((LockGrant) grant).guard(transaction);
                    transaction.set(key, step.get("value").getAsString());
                    check((transaction.exec() != null) == is, step, !is);
                }
                break;
            case "watch":
                CountDownLatch latch = new CountDownLatch(1);
                told.put(of, latch);
                grant.watch(lost -> latch.countDown());
                break;
            case "told":
                check(told.get(of).await(is ? 20 : 0, TimeUnit.SECONDS) == is, step, !is);
                break;
            case "scope":
                try (LockGrant lock = locks.acquire(keys(step), options(step))) {
                    grants.put(step.get("as").getAsString(), lock);
                    for (JsonElement one : step.getAsJsonArray("inside")) {
                        run(one.getAsJsonObject());
                    }
                    if (step.has("raise")) {
                        throw new Own();
                    }
                }
                break;
            case "throttle":
                Limit limit = locks.throttle(tag + step.get("key").getAsString(), number(step, "count", 0),
                    Duration.ofSeconds(number(step, "period", 0)), number(step, "burst", 0), number(step, "quantity", 1));
                check(limit.allowed() == step.get("allowed").getAsBoolean() && limit.remaining() == number(step, "remaining", -1), step, limit);
                break;
            case "kill":
                try (Jedis jedis = new Jedis("127.0.0.1", port("PORT"))) {
                    jedis.sendCommand(() -> "CLIENT".getBytes(), "KILL", "TYPE", "normal", "SKIPME", "yes");
                }
                break;
            case "pause":
                Thread.sleep(step.get("ms").getAsLong());
                break;
            case "command":
                command(step);
                break;
            default:
                throw new AssertionError("unknown: " + step);
        }
        return null;
    }

    private AbstractTransaction transaction(String key) {
        return client instanceof RedisClusterClient cluster
            ? new Transaction(cluster.getConnectionFromSlot(JedisClusterCRC16.getSlot(key)), true, true)
            : client.multi();
    }

    private void command(JsonObject step) throws InterruptedException {
        List<String> words = new ArrayList<>();
        step.getAsJsonArray("words").forEach(word -> words.add(word.getAsString()));
        CommandArguments request = new CommandArguments(() -> words.get(0).getBytes());
        for (String word : words.subList(1, words.size())) {
            if (word.startsWith("$")) {
                request.key(tag + word.substring(1));
            } else {
                request.add(word);
            }
        }
        for (long end = System.nanoTime() + 20_000_000_000L; ; Thread.sleep(5)) {
            Object reply;
            try {
                reply = client.executeCommand(request);
            } catch (JedisConnectionException failed) {
                // The table has killed those of the pool.
                continue;
            }
            reply = step.has("item") ? ((List<?>) reply).get(step.get("item").getAsInt()) : reply;
            boolean isRight;
            if (step.has("count")) {
                isRight = ((List<?>) reply).size() == step.get("count").getAsInt();
            } else if (step.has("above")) {
                isRight = (Long) reply > step.get("above").getAsLong();
            } else {
                String found = reply instanceof byte[] bytes ? new String(bytes) : reply == null ? null : reply.toString();
                isRight = java.util.Objects.equals(found, step.get("reply").isJsonNull() ? null : step.get("reply").getAsString());
            }
            if (isRight) {
                return;
            }
            check(step.has("until") && System.nanoTime() < end, step, reply);
        }
    }

    private static int port(String name) {
        return Integer.parseInt(System.getenv(name).split(" ")[0]);
    }

    private static Table table(String tag, String over, RedisProtocol protocol) {
        int timeout = over.equals("impatient") ? 200 : 2000;
        JedisClientConfig config = DefaultJedisClientConfig.builder().protocol(protocol).timeoutMillis(timeout).build();
        if (over.equals("cluster")) {
            HostAndPort node = new HostAndPort("127.0.0.1", port("CLUSTER"));
            RedisClusterClient client = RedisClusterClient.builder().nodes(Set.of(node)).clientConfig(config).build();
            return new Table(tag, client, new Locks(client));
        }
        if (over.equals("sentinel")) {
            HostAndPort node = new HostAndPort("127.0.0.1", port("SENTINEL"));
            RedisSentinelClient client = RedisSentinelClient.builder().masterName("primary").sentinels(Set.of(node)).clientConfig(config).build();
            return new Table(tag, client, new Locks(client));
        }
        int port = port(over.equals("relay") ? "RELAY" : "PORT");
        RedisClient client = RedisClient.builder().hostAndPort("127.0.0.1", port).clientConfig(config).build();
        return new Table(tag, client, new Locks(client));
    }

    public static void main(String[] args) throws Exception {
        int passed = 0;
        int failed = 0;
        int skipped = 0;
        for (JsonElement element : JsonParser.parseReader(new FileReader(args[0])).getAsJsonArray()) {
            JsonObject one = element.getAsJsonObject();
            List<String> all = new ArrayList<>(List.of("server", "cluster", "sentinel"));
            if (one.has("over")) {
                all.clear();
                one.getAsJsonArray("over").forEach(over -> all.add(over.getAsString()));
            }
            for (String over : all) {
                for (RedisProtocol protocol : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
                    if (over.equals("sentinel") && System.getenv("SENTINEL").isEmpty()) {
                        skipped++;
                        continue;
                    }
                    Table table = table("{" + over + protocol + System.nanoTime() + "}", over, protocol);
                    try {
                        one.getAsJsonArray("steps").forEach(step -> table.run(step.getAsJsonObject()));
                        passed++;
                    } catch (AssertionError error) {
                        failed++;
                        System.out.println("FAILED " + one.get("name") + ", over " + over + ", " + protocol + ": " + error.getMessage());
                    }
                    table.client.close();
                }
            }
        }
        System.out.println("java: " + passed + " passed, " + failed + " failed, " + skipped + " skipped");
        System.exit(failed > 0 ? 1 : 0);
    }
}
