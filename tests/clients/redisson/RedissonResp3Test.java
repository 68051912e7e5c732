import org.redisson.config.Protocol;

/** The same by the newer protocol, where messages are pushed. */
class RedissonResp3Test extends RedissonTest {
    @Override
    Protocol protocol() {
        return Protocol.RESP3;
    }
}
