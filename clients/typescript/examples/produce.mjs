// Appends, appends a batch, rolls one back, and consumes one message once; prints the ids.
import { append, appendBatch, consumeOnce } from "outbox-client";
import pg from "pg";

const given = Object.fromEntries(process.argv[2].split(" ").map((part) => part.split("=")));
const client = new pg.Client({ host: given.host, port: Number(given.port), user: given.user, database: given.dbname });
await client.connect();
const message = {
  type: "evt.a.v1",
  payload: '{"n": 1234567890123456789012345678901234567890}',
  key: "k",
  headers: { traceparent: "00-1-2-01" },
  availableAt: new Date("2020-01-01T00:00:00Z"),
};
const plain = { type: "evt.b.v1", payload: "[1e400]" };
await client.query("BEGIN");
const one = await append(client, "p", message);
const two = await appendBatch(client, "p", [message, plain]);
await client.query("COMMIT");
await client.query("BEGIN");
await append(client, "p", plain);
await client.query("ROLLBACK");
await client.query("BEGIN");
const first = await consumeOnce(client, "c", one);
const second = await consumeOnce(client, "c", one);
await client.query("COMMIT");
console.log(one, ...two, first, second);
await client.end();
