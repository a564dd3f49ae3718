// Drives graphile-worker: `migrate` makes its schema, `deliver` works off what is there with tasks that do nothing.
// by 1: one job at a time; otherwise the settings its documentation names for throughput.
import { run, runMigrations } from "graphile-worker";
import pg from "pg";

const given = JSON.parse(process.argv[2]);
const quiet = { error: console.error, warn() {}, info() {}, debug() {} };
const { Logger } = await import("graphile-worker");
const logger = new Logger(() => (level, message) => level === "error" && quiet.error(message));

if (given.action === "migrate") {
  const pgPool = new pg.Pool();
  await runMigrations({ pgPool, logger });
  await pgPool.end();
  console.log(JSON.stringify({ transactions: 0, seconds: 0 }));
} else {
  const single = given.batch === 1;
  let left = given.messages;
  let done;
  const finished = new Promise((resolve) => (done = resolve));
  const pgPool = new pg.Pool({ max: 10 });
  const began = performance.now();
  const runner = await run({
    pgPool,
    logger,
    noHandleSignals: true,
    taskList: { [given.topic]: async () => { if (--left === 0) done(); } },
    preset: {
      worker: single
        ? { concurrentJobs: given.clients }
        : { concurrentJobs: 24, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
    },
  });
  await finished;
  await runner.stop(); // waits until the last completions are written
  console.log(JSON.stringify({ transactions: given.messages / given.batch, seconds: (performance.now() - began) / 1000 }));
  await pgPool.end().catch(() => {});
}
