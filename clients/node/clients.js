// The seam to client libraries. `send(words)` gives a reply. `own()` gives a connection that nobody else uses, with `send` and
// `close`; what it sends is not sent again unseen. `breaks()` counts the connections of `send` that break until `end()`.

/** What Locks need of a client: of ioredis (Redis, its sentinels, Cluster), of node-redis, or one that has `send` and `own` itself. */
export function clientOf(client) {
  const none = Object.assign(() => 0, { end() {} });
  if (client.send && client.own) return { breaks: () => none, send: (words) => client.send(words), own: () => client.own() };
  if (client.nodes && client.call) {
    return { send: (words) => client.call(...words), own: () => ownOfCluster(client), breaks: () => breaksOf(client.nodes()) };
  }
  if (client.call) return { send: (words) => client.call(...words), own: () => ownOfIoredis(client, {}), breaks: () => breaksOf([client]) };
  if (client.sendCommand && client.duplicate) {
    // It sends nothing again by itself.
    return { send: (words) => client.sendCommand(words), own: () => ownOfNodeRedis(client), breaks: () => none };
  }
  throw new TypeError("Locks need a client of ioredis or node-redis, or one that has send(words) and own()");
}

/** ioredis sends again by itself what was sent when a connection broke. */
function breaksOf(connections) {
  let count = 0;
  const note = () => count++;
  for (const connection of connections) connection.on("close", note);
  return Object.assign(() => count, {
    end() {
      for (const connection of connections) connection.off("close", note);
    },
  });
}

function ownOfIoredis(client, place) {
  const own = client.duplicate({
    ...place,
    commandTimeout: undefined,
    socketTimeout: undefined,
    blockingTimeout: undefined,
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    // A new connection in the place of one that broke would not have the session.
    retryStrategy: () => null,
    keyPrefix: "",
  });
  // What goes wrong is told by the requests.
  own.on("error", () => {});
  return {
    send: (words) => own.call(...words),
    async close() {
      if (own.status === "end") return;
      const ended = new Promise((resolve) => own.once("end", resolve));
      // Between two attempts to connect, and before the first, nothing is open, and no event comes.
      const isOpen = !["reconnecting", "wait"].includes(own.status);
      own.disconnect();
      if (isOpen) await ended;
    },
  };
}

/** A node of the cluster: any at first, from which those that have other keys are learnt. */
function ownOfCluster(cluster) {
  const [any] = cluster.nodes("master");
  let own = ownOfIoredis(any, {});
  let isClosed = false;
  return {
    async send(words) {
      for (let redirections = 0; ; redirections++) {
        try {
          return await own.send(words);
        } catch (error) {
          const [, host, port] = /^MOVED \d+ (.*):(\d+)$/.exec(error.message) ?? [];
          if (!port || redirections > 16 || isClosed) throw error;
          await own.close();
          own = ownOfIoredis(any, { host: host || any.options.host, port: Number(port) });
        }
      }
    },
    close() {
      isClosed = true;
      return own.close();
    },
  };
}

function ownOfNodeRedis(client) {
  const { socket, commandOptions } = client.options ?? {};
  const own = client.duplicate({
    // A new connection in the place of one that broke would not have the session.
    socket: { ...socket, socketTimeout: undefined, reconnectStrategy: false },
    commandOptions: { ...commandOptions, timeout: undefined },
  });
  own.on("error", () => {});
  const connected = own.connect();
  connected.catch(() => {});
  return {
    async send(words) {
      await connected;
      return own.sendCommand(words);
    },
    async close() {
      if (own.isOpen) own.destroy();
    },
  };
}
