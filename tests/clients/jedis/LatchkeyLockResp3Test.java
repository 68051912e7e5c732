import redis.clients.jedis.RedisProtocol;

/** The same by the newer protocol, where the holder is told that it has lost a lock. */
class LatchkeyLockResp3Test extends LatchkeyLockTest {
    @Override
    RedisProtocol protocol() {
        return RedisProtocol.RESP3;
    }
}
