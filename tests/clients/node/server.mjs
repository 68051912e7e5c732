// A process of the built binary, reached by a Unix socket in a folder of its own.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const answers = (path) =>
  new Promise((resolve) => {
    const socket = connect(path, () => socket.write("PING\r\n"));
    socket.once("data", (data) => {
      socket.destroy();
      resolve(data[0] === "+".charCodeAt(0));
    });
    socket.once("error", () => resolve(false));
  });

/** Starts one; `path` is its socket, `stop()` ends it. */
export async function startServer() {
  const folder = mkdtempSync(join(tmpdir(), "latchkey"));
  const path = join(folder, "server.sock");
  const server = spawn(process.env.LATCHKEY, ["--port", "0", "--unixsocket", path, "--save", ""], { cwd: folder, stdio: "ignore" });
  const ended = new Promise((resolve) => server.once("exit", resolve));
  for (let tries = 0; !(await answers(path)); tries++) {
    if (tries === 1000 || server.exitCode !== null) throw new Error("the server does not start");
    await sleep(20);
  }
  return {
    path,
    async stop() {
      server.kill();
      await ended;
      rmSync(folder, { recursive: true });
    },
  };
}

/** Waits until `condition` holds. */
export async function until(condition) {
  for (const end = Date.now() + 30_000; !(await condition()); await sleep(2)) {
    if (Date.now() > end) throw new Error("waited in vain");
  }
}

/** Collects events: `next(count)` gives the first `count` of them, and takes them out. */
export class Heard {
  all = [];
  add = (...event) => this.all.push(event);
  async next(count) {
    await until(() => this.all.length >= count);
    return this.all.splice(0, count);
  }
}
