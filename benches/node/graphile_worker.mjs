// Drives graphile-worker: `migrate` makes its schema, `deliver` works off what is there with tasks that do nothing,
// `work` goes on under a paced load. by 1: one job at a time; otherwise the settings its documentation names for throughput.
import { Logger, run, runMigrations } from "graphile-worker";
import pg from "pg";
import * as paced from "./paced.mjs";

const given = JSON.parse(process.argv[2]);
const pgPool = new pg.Pool({ max: 10 });
const fastest = { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
const start = (task, worker = fastest, quiet = false) => run({
  pgPool,
  logger: new Logger(() => (level, message) => level === "error" && !quiet && console.error(message)),
  noHandleSignals: true,
  taskList: { [given.topic]: task },
  preset: { worker },
});

if (given.action === "migrate") {
  await runMigrations({ pgPool });
  await pgPool.end();
  console.log(JSON.stringify({ transactions: 0, seconds: 0 }));
} else if (given.action === "work") {
  const runner = await start(async ({ at }) => {
    if (at === undefined) await new Promise(() => {});
    if (Math.random() < given.fails) throw new Error("no answer");
  }, fastest, true);
  runner.events.on("job:complete", ({ job, error }) => error || paced.completed(job.payload.at));
  paced.worker();
} else {
  let left = given.messages;
  let done;
  const finished = new Promise((resolve) => (done = resolve));
  const began = performance.now();
  const runner = await start(async () => { if (--left === 0) done(); }, given.batch === 1 ? { concurrentJobs: given.clients } : fastest);
  await finished;
  await runner.stop(); // waits until the last completions are written
  console.log(JSON.stringify({ transactions: given.messages / given.batch, seconds: (performance.now() - began) / 1000 }));
  await pgPool.end().catch(() => {});
}
