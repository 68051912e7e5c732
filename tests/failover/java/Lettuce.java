import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;

/** Numbered writes through Lettuce's Sentinel support. The arguments are the sentinels' ports. */
final class Lettuce {
    private Lettuce() {}

    public static void main(String[] ports) throws Exception {
        var uri = RedisURI.builder().withSentinelMasterId("main");
        for (String port : ports) {
            uri.withSentinel("127.0.0.1", Integer.parseInt(port));
        }
        // All else is default: commands 60 s, connections 10 s, and it connects again by itself.
        var commands = RedisClient.create(uri.build()).connect().sync();
        Numbers.write("lettuce", commands::set);
    }
}
