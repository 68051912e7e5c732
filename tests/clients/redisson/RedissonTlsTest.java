import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.Timeout;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RTopic;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Redisson over TLS, with a certificate of the client's own. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
@Timeout(60)
class RedissonTlsTest {
    private Server server;
    private RedissonClient redisson;

    private static Path file(String name) {
        return Path.of(System.getenv("TLS_CERTIFICATES"), name);
    }

    private static TrustManagerFactory trusted() throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, null);
        try (InputStream certificate = Files.newInputStream(file("ca.crt"))) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(certificate));
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory;
    }

    private static KeyManagerFactory own() throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream pair = Files.newInputStream(file("client.p12"))) {
            store.load(pair, "secret".toCharArray());
        }
        KeyManagerFactory factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        factory.init(store, "secret".toCharArray());
        return factory;
    }

    @BeforeAll
    void start() throws Exception {
        server = new Server();
        int port = Server.freePort();
        try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), server.port)) {
            String set = "CONFIG SET tls-cert-file " + file("server.crt") + " tls-key-file " + file("server.key")
                + " tls-ca-cert-file " + file("ca.crt") + " tls-port " + port + "\r\n";
            socket.getOutputStream().write(set.getBytes());
            assertEquals("+OK", new BufferedReader(new InputStreamReader(socket.getInputStream())).readLine());
        }
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setSslTrustManagerFactory(trusted());
        config.setSslKeyManagerFactory(own());
        config.useSingleServer().setAddress("rediss://localhost:" + port);
        redisson = Redisson.create(config);
    }

    @AfterAll
    void stop() throws Exception {
        if (redisson != null) {
            redisson.shutdown();
        }
        server.close();
    }

    @Test
    void valuesGoBothWays() {
        String large = "0123456789".repeat(300_000);
        redisson.<String>getBucket("large").set(large);
        assertEquals(large, redisson.<String>getBucket("large").get());
    }

    @Test
    void messagesAndLocksWork() throws Exception {
        RTopic topic = redisson.getTopic("news");
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        topic.addListener(String.class, (channel, text) -> heard.add(text));
        for (int number = 0; number < 100; number++) {
            topic.publish("message " + number);
            assertEquals("message " + number, heard.poll(20, TimeUnit.SECONDS));
        }
        RLock lock = redisson.getLock("lock");
        assertTrue(lock.tryLock(5, 5, TimeUnit.SECONDS));
        lock.unlock();
    }
}
