// A worker that prints each delivery. A payload {"sleep": 0.5} takes that long; {"fail": true} fails.
// Its argument is a connection string of libpq's: pg knows none, and takes one host at a time.
import { setTimeout as sleep } from "node:timers/promises";
import { drainOnce, runWorker } from "outbox-client";

async function deliver(message) {
  const payload = JSON.parse(message.payload);
  const what = `${payload.n} ${message.key ?? "-"} ${message.token}`;
  console.log(`start ${what}`);
  await sleep(1000 * (payload.sleep ?? 0));
  if (payload.fail) throw new Error("as told");
  console.log(`end ${what}`);
}

const given = Object.fromEntries(process.argv[2].split(" ").map((part) => part.split("=")));
const ports = given.port.split(",");
const connect = given.host.split(",").map((host, place) => ({
  host, port: Number(ports[place]), user: given.user, database: given.dbname,
}));
const options = { connect, owner: "typescript", topic: "t", leaseSeconds: 2 };
const stop = new AbortController();
process.on("SIGTERM", () => stop.abort());
const counts = await (process.argv[3] ? drainOnce(options, deliver) : runWorker(options, deliver, stop.signal));
console.log(`Counts { ${Object.entries(counts).map(([name, count]) => `${name}: ${count}`).join(", ")} }`);
