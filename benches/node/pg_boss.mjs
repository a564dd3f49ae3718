// Drives pg-boss: `migrate` makes its schema and a queue, the other actions call send, insert, fetch, complete and fail;
// `produce` and `work` go on under a paced load.
import PgBoss from "pg-boss";
import * as paced from "./paced.mjs";

const given = JSON.parse(process.argv[2]);
const boss = new PgBoss({
  host: process.env.PGHOST,
  port: Number(process.env.PGPORT),
  user: process.env.PGUSER,
  database: process.env.PGDATABASE,
  max: given.clients ?? 2,
  migrate: given.action === "migrate",
  supervise: false,
  schedule: false,
});
boss.on("error", (error) => { console.error(error); process.exit(1); });
await boss.start();

let transactions = 0;
const until = async (clients, step) => {
  const began = performance.now();
  await Promise.all(Array.from({ length: clients }, async () => { while (await step(began)) transactions++; }));
  return (performance.now() - began) / 1000;
};
const inTime = (began) => performance.now() - began < given.seconds * 1000;

const options = { retryLimit: 10, retryDelay: 1 };
const append = (payloads) => payloads.length === 1
  ? boss.send(given.topic, payloads[0], options)
  : boss.insert(payloads.map((data) => ({ name: given.topic, data, ...options })));
const work = async () => {
  const ids = (jobs) => jobs.map((job) => job.id);
  while (!paced.over) {
    const began = performance.now();
    const jobs = await boss.fetch(given.topic, { batchSize: 100, priority: false });
    if (jobs.length === 0) {
      await paced.rest(5);
      continue;
    }
    paced.claimed(performance.now() - began);
    const answered = jobs.filter((job) => job.data.at !== undefined);
    const lost = new Set(answered.filter(() => Math.random() < given.fails));
    const kept = answered.filter((job) => !lost.has(job));
    if (lost.size > 0) await boss.fail(given.topic, ids([...lost]));
    if (kept.length > 0) await boss.complete(given.topic, ids(kept));
    for (const job of kept) paced.completed(job.data.at);
  }
};
const endless = new Promise(() => {}); // a paced process ends with its standard input

let seconds = 0;
if (given.action === "produce") {
  await paced.producer(given, append);
  await endless;
} else if (given.action === "work") {
  paced.worker();
  await Promise.all([work(), work()]);
  await endless;
} else if (given.action === "migrate") {
  await boss.createQueue(given.topic);
} else if (given.action === "append") {
  const data = JSON.parse(given.payload);
  seconds = await until(given.clients, async (began) => { await boss.send(given.topic, data); return inTime(began); });
} else if (given.action === "append_many") {
  const data = JSON.parse(given.payload);
  const jobs = Array.from({ length: given.count }, () => ({ name: given.topic, data }));
  seconds = await until(1, async (began) => { await boss.insert(jobs); return inTime(began); });
} else {
  seconds = await until(given.clients, async () => {
    const jobs = await boss.fetch(given.topic, { batchSize: given.batch, priority: false });
    if (jobs.length === 0) return false;
    await boss.complete(given.topic, jobs.map((job) => job.id));
    return true;
  });
}
console.log(JSON.stringify({ transactions, seconds }));
await boss.stop({ graceful: false, wait: false });
process.exit(0);
