// ioredis over TLS, with a certificate of the client's own.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { Redis } from "ioredis";
import { Heard, startServer } from "./server.mjs";

const path = (name) => join(process.env.TLS_CERTIFICATES, name);

// Below those that the system gives to clients and to listeners on any port.
const freePort = () =>
  new Promise((resolve) => {
    const port = 12_000 + Math.floor(Math.random() * 10_000);
    const listener = createServer().listen(port, "127.0.0.1", () => listener.close(() => resolve(port)));
    listener.once("error", () => resolve(freePort()));
  });

describe("over TLS", () => {
  let server, port;
  const clients = [];
  const connect = (options) => {
    const client = new Redis(options);
    clients.push(client);
    return client;
  };
  const overTls = () =>
    connect({
      host: "localhost",
      port,
      tls: { ca: readFileSync(path("ca.crt")), cert: readFileSync(path("client.crt")), key: readFileSync(path("client.key")) },
    });

  before(async () => {
    server = await startServer();
    port = await freePort();
    const files = ["tls-cert-file", path("server.crt"), "tls-key-file", path("server.key"), "tls-ca-cert-file", path("ca.crt")];
    await connect({ path: server.path }).config("SET", ...files, "tls-port", port);
  });
  after(async () => {
    for (const client of clients) client.disconnect();
    await server.stop();
  });

  it("carries values, small and large", async () => {
    const client = overTls();
    const large = Buffer.alloc(5_000_000, "0123456789");
    assert.equal(await client.set("large", large), "OK");
    assert.deepEqual(await client.getBuffer("large"), large);
    const numbers = Array.from({ length: 1000 }, (_, number) => number);
    const replies = await Promise.all(numbers.map((number) => client.incr("counter").then((reply) => reply - number)));
    assert.ok(replies.every((reply) => reply === 1));
  });

  it("carries messages", async () => {
    const listener = overTls();
    const heard = new Heard();
    listener.on("message", heard.add);
    await listener.subscribe("news");
    const client = overTls();
    for (let number = 0; number < 100; number++) assert.equal(await client.publish("news", number), 1);
    assert.deepEqual((await heard.next(100)).map(([, text]) => Number(text)), Array.from({ length: 100 }, (_, number) => number));
  });
});
