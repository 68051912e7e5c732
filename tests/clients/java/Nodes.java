import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;

/** Six nodes of a cluster (see ../nodes.py): the ports of the primaries, then of a replica of each. */
final class Nodes implements AutoCloseable {
    final List<Integer> ports = new ArrayList<>();
    private final Process process;
    private final BufferedReader lines;

    Nodes() throws IOException {
        process = new ProcessBuilder("python3", System.getenv("CLUSTER_NODES"))
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
        lines = new BufferedReader(new InputStreamReader(process.getInputStream()));
        String ready = lines.readLine();
        if (ready == null || !ready.startsWith("ready ")) {
            throw new IOException("the nodes do not start");
        }
        for (String port : ready.substring(6).split(" ")) {
            ports.add(Integer.valueOf(port));
        }
    }

    /** Kills or starts a node. */
    void tell(String verb, int port) throws IOException {
        process.getOutputStream().write((verb + " " + port + "\n").getBytes());
        process.getOutputStream().flush();
        if (!"ok".equals(lines.readLine())) {
            throw new IOException(verb + " " + port);
        }
    }

    /** The first number in the reply to a request, or -1 if that is an error. */
    static long number(int port, String request) throws IOException {
        try (Socket socket = new Socket("127.0.0.1", port)) {
            socket.getOutputStream().write((request + "\r\n").getBytes());
            BufferedReader reply = new BufferedReader(new InputStreamReader(socket.getInputStream()));
            for (String line; (line = reply.readLine()) != null && !line.startsWith("-"); ) {
                if (line.startsWith(":")) {
                    return Long.parseLong(line.substring(1));
                }
            }
            return -1;
        }
    }

    static void until(Callable<Boolean> condition) throws Exception {
        for (long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(30); !condition.call(); Thread.sleep(20)) {
            if (System.nanoTime() > end) {
                throw new AssertionError("waited in vain");
            }
        }
    }

    @Override
    public void close() throws Exception {
        process.getOutputStream().close();
        process.waitFor(30, TimeUnit.SECONDS);
    }
}
