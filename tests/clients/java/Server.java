import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/** A process of the built binary, reached by a free port of the loopback address. */
final class Server implements AutoCloseable {
    final int port;
    private final Process process;
    private final Path folder;

    Server() throws Exception {
        folder = Files.createTempDirectory("latchkey");
        for (int attempt = 0; ; attempt++) {
            int port = freePort();
            Process process = new ProcessBuilder(System.getenv("LATCHKEY"), "--bind", "127.0.0.1",
                    "--port", Integer.toString(port), "--save", "")
                .directory(folder.toFile())
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .redirectError(ProcessBuilder.Redirect.DISCARD)
                .start();
            if (answers(process, port)) {
                this.port = port;
                this.process = process;
                Runtime.getRuntime().addShutdownHook(new Thread(process::destroy));
                return;
            }
            process.destroy();
            // Somebody else may have taken the port in between.
            if (attempt == 5) {
                throw new IOException("the server does not start");
            }
        }
    }

    /** Below those that the system gives to clients and to listeners on any port. */
    static int freePort() {
        while (true) {
            int port = ThreadLocalRandom.current().nextInt(12_000, 22_000);
            try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
                return socket.getLocalPort();
            } catch (IOException taken) {
                // The next one.
            }
        }
    }

    private static boolean answers(Process process, int port) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (process.isAlive() && System.nanoTime() < deadline) {
            try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
                socket.getOutputStream().write("PING\r\n".getBytes());
                if (socket.getInputStream().read() == '+') {
                    return true;
                }
            } catch (IOException notYet) {
                Thread.sleep(10);
            }
        }
        return false;
    }

    @Override
    public void close() throws Exception {
        process.destroy();
        process.waitFor(20, TimeUnit.SECONDS);
        Files.delete(folder);
    }
}
