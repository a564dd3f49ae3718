// Drives pg-boss: `migrate` makes its schema and a queue, the other actions call send, insert, fetch and complete.
import PgBoss from "pg-boss";

const given = JSON.parse(process.argv[2]);
const boss = new PgBoss({
  host: process.env.PGHOST,
  port: Number(process.env.PGPORT),
  user: process.env.PGUSER,
  database: process.env.PGDATABASE,
  max: given.clients ?? 1,
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

let seconds = 0;
if (given.action === "migrate") {
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
