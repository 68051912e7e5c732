// Runs jobs by BullMQ: `bullmq.mjs PORT JOBS CONCURRENCY`. Every tenth job fails once.
import { Queue, Worker } from "bullmq";

const [port, jobs, concurrency] = process.argv.slice(2).map(Number);
const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
const queue = new Queue("jobs", { connection });
const options = { attempts: 5, backoff: { type: "fixed", delay: 1000 }, removeOnComplete: true };
const add = async (part) => {
  for (let number = part; number < jobs; number += concurrency) await queue.add("work", { number }, options);
};
await Promise.all(Array.from({ length: concurrency }, (_, part) => add(part)));
let done = 0;
await new Promise((resolve) => {
  const work = async (job) => {
    if (job.attemptsMade === 0 && job.data.number % 10 === 0) throw new Error("once");
  };
  const worker = new Worker("jobs", work, { connection, concurrency });
  worker.on("error", (error) => console.error(error));
  worker.on("completed", async () => {
    if (++done < jobs) return;
    await worker.close();
    resolve();
  });
});
await queue.close();
console.log(done);
process.exit(0);
