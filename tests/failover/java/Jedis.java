import java.util.Arrays;
import java.util.stream.Collectors;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisSentinelClient;

/** Numbered writes through Jedis's Sentinel support. The arguments are the sentinels' ports. */
final class Jedis {
    private Jedis() {}

    public static void main(String[] ports) throws Exception {
        var sentinels = Arrays.stream(ports).map(port -> new HostAndPort("127.0.0.1", Integer.parseInt(port))).collect(Collectors.toSet());
        // All else is default: connectionTimeout and socketTimeout 2 s, for the sentinels too; no command is tried again.
        var client = RedisSentinelClient.builder().masterName("main").sentinels(sentinels).build();
        Numbers.write("jedis", client::set);
    }
}
