import org.redisson.config.Protocol;

/** The same by the newer protocol, where messages are pushed. */
class MixedLocksResp3Test extends MixedLocksTest {
    @Override
    Protocol protocol() {
        return Protocol.RESP3;
    }
}
