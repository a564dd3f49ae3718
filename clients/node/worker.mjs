#!/usr/bin/env node
// Reference worker: claims messages from `outbox`, delivers them, answers for each. Copy it.
//
//     npm ci
//     PGHOST=… PGDATABASE=… node worker.mjs --owner mailer-1 --topic orders --url http://…/
//
// * `claim` waits inside the server until there is work, so an idle worker costs nothing.
// * `deliver` is the part to replace. Here it posts the whole batch to a URL as one JSON array; the
//   answer is an object {message id: why it was not accepted}, so {} when all is well.
// * What was accepted is completed in one call; what was not fails with its error text and comes
//   back later, or is dead after the last attempt.
// * While a delivery runs, its leases are extended, so slow work is not given to somebody else.
// * SIGTERM: finish what is being delivered, release what is not, exit 0.
// * A lost connection is opened again. An answer that could not be given is no harm: the lease runs
//   out and the message is delivered again, which is why a consumer needs `consume_once`.

import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import pg from 'pg';

// The server writes each message as JSON, so that a payload leaves as it was stored: JSON.parse
// would round long numbers. For single columns: SELECT id, token, payload, …
const CLAIM = `SELECT id, token, row_to_json(message)::text AS body
                 FROM outbox.claim(owner => $1, topic => $2, batch_size => $3,
                                   lease_seconds => $4, wait_seconds => $5) AS message`;
const COMPLETE = 'SELECT completed FROM outbox.complete_batch($1)';
const FAIL = 'SELECT outbox.fail($1, error => $2)';
const EXTEND = 'SELECT outbox.extend(token, $1) FROM unnest($2::uuid[]) AS token';
const RELEASE = 'SELECT outbox.release(token) FROM unnest($1::uuid[]) AS token';
const GIVE_UP = 60_000; // ms without a database; then whoever supervises us should know

const { values: options } = parseArgs({
  options: {
    owner: { type: 'string' }, // name of this worker, for operators
    topic: { type: 'string' }, // default: any topic
    url: { type: 'string' }, // where to deliver
    'batch-size': { type: 'string', default: '50' },
    'lease-seconds': { type: 'string', default: '60' },
    'wait-seconds': { type: 'string', default: '5' }, // also how long a stop may take
  },
});
if (!options.owner || !options.url) {
  console.error('usage: worker.mjs --owner NAME --url URL [--topic TOPIC] [--batch-size N] '
    + '[--lease-seconds N] [--wait-seconds N]');
  process.exit(2);
}
const leaseSeconds = Number(options['lease-seconds']);
const request = [options.owner, options.topic, options['batch-size'], leaseSeconds,
  options['wait-seconds']];

const count = { completed: 0, failed: 0, released: 0, stale: 0 };
let stopping = false;
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => { stopping = true; });

async function deliver(messages) {
  const response = await fetch(options.url, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'outbox-owner': options.owner },
    body: `[${messages.map((message) => message.body).join()}]`,
    signal: AbortSignal.timeout(60_000),
  });
  if (!response.ok) throw new Error(`${options.url} answered ${response.status}`);
  return response.json();
}

/** The delivery's problems by message id; extends the leases for as long as it runs. */
async function delivered(client, messages, tokens) {
  const extend = () => client.query(EXTEND, [leaseSeconds, tokens]).catch(() => {});
  const keeper = setInterval(extend, (leaseSeconds * 1000) / 3);
  try {
    return await deliver(messages);
  } catch (error) {
    return Object.fromEntries(messages.map(({ id }) => [id, error.cause?.message ?? error.message]));
  } finally {
    clearInterval(keeper);
  }
}

async function work(client) {
  const { rows: messages } = await client.query(CLAIM, request);
  const tokens = messages.map((message) => message.token);
  if (stopping) {
    await client.query(RELEASE, [tokens]);
    count.released += tokens.length;
    return;
  }
  if (messages.length === 0) return;
  const problems = await delivered(client, messages, tokens);
  const good = messages.filter(({ id }) => !problems[id]).map(({ token }) => token);
  const { rows: answers } = await client.query(COMPLETE, [good]);
  count.completed += good.length;
  count.stale += answers.filter(({ completed }) => !completed).length;
  for (const { token, id } of messages.filter((message) => problems[message.id])) {
    await client.query(FAIL, [token, problems[id]]);
    count.failed += 1;
  }
}

/** The connection or the server is gone or going, rather than a statement wrong. */
function isPassing(error) {
  return !error.severity || /^(08|40|53|57)/.test(error.code);
}

let alive = Date.now();
while (!stopping) {
  const client = new pg.Client();
  client.on('error', () => {}); // a query in flight is rejected with the same error
  try {
    await client.connect();
    try {
      while (!stopping) await work(client);
    } finally {
      alive = Date.now();
    }
  } catch (error) {
    if (!isPassing(error) || Date.now() - alive > GIVE_UP) throw error;
    console.error(`connection lost: ${error.message}`);
    await sleep(500);
  } finally {
    await client.end().catch(() => {});
  }
}
console.log(Object.entries(count).map(([name, value]) => `${name} ${value}`).join(', '));
