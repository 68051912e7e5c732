import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.redisson.api.RLock;
import org.redisson.api.redisnode.RedisCluster;
import org.redisson.api.redisnode.RedisNodes;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;

/** The same over a cluster, and a lock whose primary dies. */
class RedissonClusterTest extends RedissonTest {
    private Nodes nodes;

    @Override
    void use(Config config) {
        var cluster = config.useClusterServers()
            .setScanInterval(500)
            .setRetryAttempts(20)
            .setReadMode(ReadMode.MASTER)
            .setMasterConnectionPoolSize(16)
            .setMasterConnectionMinimumIdleSize(2)
            .setSlaveConnectionMinimumIdleSize(1)
            .setSubscriptionConnectionMinimumIdleSize(1);
        for (int port : nodes.ports) {
            cluster.addNodeAddress("redis://127.0.0.1:" + port);
        }
    }

    @Override
    void startServers() throws Exception {
        nodes = new Nodes();
    }

    @Override
    long subscribers(String channel) {
        return nodes.ports.stream().mapToLong(port -> {
            try {
                // For locks Redisson takes channels of shards where it finds that there are any.
                return Nodes.number(port, "PUBSUB NUMSUB " + channel) + Nodes.number(port, "PUBSUB SHARDNUMSUB " + channel);
            } catch (IOException gone) {
                return 0;
            }
        }).sum();
    }

    @Override
    void stopServers() throws Exception {
        nodes.close();
    }

    @Test
    void aLockOutlivesItsPrimary() throws Exception {
        RedisCluster cluster = redisson.getRedisNodes(RedisNodes.CLUSTER);
        assertEquals(3, cluster.getMasters().size());
        RLock lock = redisson.getLock("lock");
        // Redisson waits for the replica of the lock's primary.
        lock.lock(60, TimeUnit.SECONDS);
        int primary = 0;
        for (int port : nodes.ports.subList(0, 3)) {
            primary = Nodes.number(port, "EXISTS lock") == 1 ? port : primary;
        }
        nodes.tell("kill", primary);
        assertFalse(other.getLock("lock").tryLock(6, TimeUnit.SECONDS));
        assertTrue(lock.isHeldByCurrentThread());
        nodes.tell("start", primary);
        lock.unlock();
        assertTrue(other.getLock("lock").tryLock());
        other.getLock("lock").unlock();
    }
}
