import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Protocol.Command;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.util.KeyValue;
import redis.clients.jedis.util.KeyValue;
import redis.clients.jedis.util.SafeEncoder;

/**
 * A worker for a queue of a Latchkey server through Jedis: docs/queues.md. Hands jobs to a handler, one at a time, and renews the
 * lease while it works. A job whose handler throws comes again after a pause, which doubles each time; after {@code attempts} it
 * is a dead letter.
 */
public final class LatchkeyWorker {
  public interface Handler { void handle(Map<String, String> fields) throws Exception; }

  private final UnifiedJedis jedis;
  private final String queue;
  private final String group = "workers";
  // One name for each thing that works at a time: it fences.
  private final String name = ProcessHandle.current().pid() + ":" + UUID.randomUUID();
  private final long leaseMs;
  private final long pauseMs;
  private final int attempts;
  private final Handler handler;

  public LatchkeyWorker(UnifiedJedis jedis, String queue, long leaseMs, long pauseMs, int attempts, Handler handler) {
    this.jedis = jedis;
    this.queue = queue;
    this.leaseMs = leaseMs;
    this.pauseMs = pauseMs;
    this.attempts = attempts;
    this.handler = handler;
    try {
      jedis.sendCommand(Command.XGROUP, "CREATE", queue, group, "0", "MKSTREAM");
    } catch (JedisDataException error) {
      if (!error.getMessage().startsWith("BUSYGROUP")) throw error;
    }
  }

  /** Takes one job; false if there is none. */
  public boolean workOnce(long blockMs) {
    Object reply = jedis.sendCommand(Command.XREADGROUP, "GROUP", group, name, "COUNT", "1", "BLOCK", "" + blockMs,
        "CLAIM", "" + leaseMs, "DUE", queue + ":later", "UNIT", "MS", "MAXDELIVERIES", "" + attempts,
        "DEADLETTER", queue + ":dead", "STREAMS", queue, ">");
    if (reply == null) return false;
    Object stream = ((List<?>) reply).get(0);
    // A pair of a map with RESP3.
    Object entries = stream instanceof KeyValue<?, ?> pair ? pair.getValue() : ((List<?>) stream).get(1);
    List<?> entry = (List<?>) ((List<?>) entries).get(0);
    String id = text(entry.get(0));
    List<?> flat = (List<?>) entry.get(1);
    Map<String, String> fields = new HashMap<>();
    for (int at = 0; at < flat.size(); at += 2) fields.put(text(flat.get(at)), text(flat.get(at + 1)));
    ScheduledExecutorService heartbeat = Executors.newSingleThreadScheduledExecutor();
    heartbeat.scheduleAtFixedRate(() -> jedis.sendCommand(Command.XCLAIM, queue, group, name, "0", id, "JUSTID", "OWNER", name),
        leaseMs / 3, leaseMs / 3, TimeUnit.MILLISECONDS);
    try {
      handler.handle(fields);
      jedis.sendCommand(() -> SafeEncoder.encode("XACKDEL"), queue, group, "ACKED", "OWNER", name, "IDS", "1", id);
    } catch (Exception error) {
      long pause = pauseMs << Math.min((Long) entry.get(3), 20);
      jedis.sendCommand(() -> SafeEncoder.encode("XNACK"), queue, group, "FAIL", "IDS", "1", id, "OWNER", name, "DELAY", "" + pause);
    } finally {
      heartbeat.shutdownNow();
    }
    return true;
  }

  private static String text(Object value) {
    return SafeEncoder.encode((byte[]) value);
  }
}
