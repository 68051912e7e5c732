// Six nodes of the built binary (see ../nodes.py), and what the programs do to them.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { Cluster, Redis } from "ioredis";
import { until } from "./server.mjs";

/** Starts them; `ports` has the primaries first, then a replica of each. */
export async function startCluster() {
  const nodes = spawn("python3", [process.env.CLUSTER_NODES], { stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise((resolve) => nodes.once("exit", resolve));
  const lines = createInterface({ input: nodes.stdout })[Symbol.asyncIterator]();
  const [ready, ...ports] = (await lines.next()).value?.split(" ") ?? [];
  if (ready !== "ready") throw new Error("the nodes do not start");
  const opened = [];
  const keep = (client) => {
    client.on("error", () => {});
    opened.push(client);
    return client;
  };
  const node = (port) => keep(new Redis({ port: Number(port), host: "127.0.0.1" }));
  const cluster = {
    ports: ports.map(Number),
    keep,
    node,
    connect: (options = {}) =>
      keep(
        new Cluster(
          ports.map((port) => ({ host: "127.0.0.1", port: Number(port) })),
          // As patient as a failover is long.
          { retryDelayOnFailover: 100, retryDelayOnClusterDown: 100, maxRedirections: 100, slotsRefreshInterval: 1000, ...options },
        ),
      ),
    /** Kills or starts a node. */
    async tell(verb, port) {
      nodes.stdin.write(`${verb} ${port}\n`);
      if ((await lines.next()).value !== "ok") throw new Error(`${verb} ${port}`);
    },
    /** The port of the node that serves a slot, as one node tells. */
    async owner(slot, told = cluster.ports[0]) {
      const client = node(told);
      const ranges = await client.cluster("SLOTS");
      client.disconnect();
      return ranges.find(([first, last]) => first <= slot && slot <= last)?.[2][1];
    },
    /** Waits until all nodes agree about the owner of a slot. */
    async agreed(slot, owner) {
      await until(async () => (await Promise.all(cluster.ports.map((port) => cluster.owner(slot, port)))).every((port) => port === owner));
    },
    async stop() {
      for (const client of opened) client.disconnect();
      nodes.stdin.end();
      await ended;
    },
  };
  return cluster;
}

/** Counts up keys through a client until it is ended; `counts` is what was acknowledged. */
export class Load {
  counts = new Map();
  going = true;
  constructor(client, keys) {
    for (const key of keys) this.counts.set(key, 0);
    this.ended = (async () => {
      while (this.going) {
        for (const key of keys) this.counts.set(key, await client.incr(key));
      }
    })();
    this.ended.catch(() => {});
  }
  /** Waits until each key was counted up some times from now on. */
  async rounds(count = 3) {
    const wanted = new Map([...this.counts].map(([key, value]) => [key, value + count]));
    await Promise.race([this.ended, until(() => [...wanted].every(([key, value]) => this.counts.get(key) >= value))]);
  }
  async end() {
    await this.rounds();
    this.going = false;
    await this.ended;
  }
}
