import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import type { Message } from "./messages.js";

// Answers first, then the claim, in one statement: the claim depends on `said`, so the answers come before it.
const ANSWER = `WITH answered AS MATERIALIZED (
        SELECT token, completed FROM outbox.complete_batch($1::uuid[])
        UNION ALL
        SELECT token, outbox.fail(token, error) IS NOT NULL FROM unnest($2::uuid[], $3::text[]) AS f (token, error)
        UNION ALL
        SELECT token, outbox.release(token) FROM unnest($4::uuid[]) AS r (token)),
    said AS MATERIALIZED (
        SELECT count(*)::integer AS answers, (count(*) FILTER (WHERE NOT completed))::integer AS stale FROM answered)`;
const CLAIM = `SELECT stale, id, token, topic, type, payload::text AS payload, key, headers, attempts
    FROM said LEFT JOIN LATERAL outbox.claim(owner => $5::text, topic => $6::text, batch_size => $7::integer + 0 * said.answers,
        lease_seconds => $8::integer, wait_seconds => $9::integer) AS message ON true`;
const EXTEND = "SELECT token FROM unnest($1::uuid[]) AS token WHERE outbox.extend(token, $2) IS NULL";
const WRITES = "SELECT NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::boolean AS writes";
/** Milliseconds between looks while a delivery runs and another could. */
const LOOK = 250;
/** Milliseconds of the backoff between connections. */
const CALM = 100;
const LONGEST = 10_000;

/** Told what the worker does, for metrics and tracing. */
export interface Hooks {
  claimed?(messages: number): void;
  /** Around each delivery: the place for a span. */
  delivering?(message: Message, deliver: () => Promise<void>): Promise<void>;
  ended?(message: Message, error: unknown, milliseconds: number): void;
  reconnecting?(error: unknown): void;
}

export interface Options {
  /** Where to connect. Of several, the first that takes writes. */
  connect: pg.ClientConfig | pg.ClientConfig[];
  /** Name of this worker, for operators. */
  owner: string;
  /** Without it: any topic. */
  topic?: string;
  /** Deliveries at a time, 1 to 500. */
  concurrency?: number;
  leaseSeconds?: number;
  /** Longest sleep inside the server. */
  waitSeconds?: number;
  hooks?: Hooks;
}

/** What became of the messages. A stale answer changed nothing: the lease was no longer the current one. */
export interface Counts {
  delivered: number;
  failed: number;
  released: number;
  stale: number;
}

type Handler = (message: Message) => Promise<void>;

/** Works until `signal` aborts: finishes what runs, releases the rest. Reconnects for as long as that takes; rejects with an
 * error that a new connection would not cure. */
export function runWorker(options: Options, handler: Handler, signal?: AbortSignal): Promise<Counts> {
  return new Worker(options, handler, signal ?? new AbortController().signal, false).run();
}

/** Works until nothing is left to claim, then returns: for schedulers and serverless. */
export function drainOnce(options: Options, handler: Handler): Promise<Counts> {
  return new Worker(options, handler, new AbortController().signal, true).run();
}

interface Answers {
  complete: string[];
  fail: string[];
  errors: string[];
  release: string[];
}

const none = (): Answers => ({ complete: [], fail: [], errors: [], release: [] });
const isEmpty = (answers: Answers) => !(answers.complete.length + answers.fail.length + answers.release.length);
/** One delivery at a time; undefined: any number. */
const lane = ({ topic, key }: Message) => (key === null ? undefined : JSON.stringify([topic, key]));

class Worker {
  private client?: pg.Client;
  private queue: Message[] = [];
  private running = new Set<Message>();
  private answers = none();
  private counts: Counts = { delivered: 0, failed: 0, released: 0, stale: 0 };
  private extended = performance.now();
  private wake = () => {};
  private concurrency: number;
  private lease: number;

  constructor(
    private options: Options,
    private handler: Handler,
    private signal: AbortSignal,
    private drain: boolean,
  ) {
    this.concurrency = options.concurrency ?? 10;
    this.lease = options.leaseSeconds ?? 60;
  }

  async run(): Promise<Counts> {
    const stopped = () => void this.stop();
    this.signal.addEventListener("abort", stopped);
    let calm = CALM;
    try {
      for (;;) {
        if (this.signal.aborted) this.answers.release.push(...this.queue.splice(0).map(({ token }) => token));
        try {
          if (await this.turn()) return this.counts;
          calm = CALM;
        } catch (error) {
          if (this.signal.aborted && codeOf(error) === "57014") continue; // the claim that slept
          if (!isPassing(error)) throw error;
          this.options.hooks?.reconnecting?.(error);
          await this.disconnect();
          await this.event(calm * (0.5 + Math.random()));
          calm = Math.min(2 * calm, LONGEST);
          // Without a database a stopped worker leaves its leases to run out.
          if (this.signal.aborted && !this.running.size && calm === LONGEST) throw error;
        }
      }
    } finally {
      this.signal.removeEventListener("abort", stopped);
      await this.disconnect();
    }
  }

  /** One exchange with the server, or one event while deliveries run. True: there is nothing more to do. */
  private async turn(): Promise<boolean> {
    await this.extend();
    const room = this.signal.aborted ? 0 : Math.max(0, this.concurrency - this.running.size - this.queue.length);
    const got = room || !isEmpty(this.answers) ? await this.exchange(room, 0) : 0;
    this.start();
    if (this.running.size) {
      const until = Math.max(0, (this.lease * 1000) / 3 - (performance.now() - this.extended));
      await this.event(room > got ? Math.min(until, LOOK) : until);
      return false;
    }
    if (this.signal.aborted || this.drain) return got === 0 && isEmpty(this.answers);
    this.sleeping = true;
    try {
      await this.exchange(room, this.options.waitSeconds ?? 5);
    } finally {
      this.sleeping = false;
    }
    return false;
  }

  private sleeping = false;

  /** Cancels the claim that sleeps, and with it what it would lease. */
  private async stop(): Promise<void> {
    this.wake();
    for (; this.sleeping; await sleep(100)) {
      const pid = (this.client as { processID?: number } | undefined)?.processID;
      const other = new pg.Client(this.at);
      other.on("error", () => {});
      await other
        .connect()
        .then(() => other.query("SELECT pg_cancel_backend($1)", [pid]))
        .catch(() => {}); // then it sleeps on, for as long as it waits
      await other.end().catch(() => {});
    }
  }

  /** Waits until a delivery ends, a stop, or so many milliseconds have passed. */
  private event(milliseconds: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Gives the answers and claims `room` messages in one statement; answers that failed to go stay. */
  private async exchange(room: number, wait: number): Promise<number> {
    const given = this.answers;
    this.answers = none();
    let rows;
    try {
      const said = [given.complete, given.fail, given.errors, given.release];
      const asked = [this.options.owner, this.options.topic ?? null, Math.min(room, 500), this.lease, wait];
      const client = await this.connected();
      ({ rows } = room
        ? await client.query(`${ANSWER} ${CLAIM}`, [...said, ...asked])
        : await client.query(`${ANSWER} SELECT stale FROM said`, said));
    } catch (error) {
      for (const name of ["complete", "fail", "errors", "release"] as const) this.answers[name].unshift(...given[name]);
      throw error;
    }
    this.counts.stale += rows[0].stale;
    this.counts.delivered += given.complete.length;
    this.counts.failed += given.fail.length;
    this.counts.released += given.release.length;
    const messages: Message[] = rows.filter(({ id }) => id).map(({ stale, ...message }) => message);
    if (messages.length && !this.running.size && !this.queue.length) this.extended = performance.now();
    this.queue.push(...messages);
    if (room) this.options.hooks?.claimed?.(messages.length);
    return messages.length;
  }

  /** At a third of the lease, all that is held is extended; what is stale and has not begun is dropped. */
  private async extend(): Promise<void> {
    const held = [...this.running, ...this.queue].map(({ token }) => token);
    if (!held.length || performance.now() - this.extended < (this.lease * 1000) / 3) return;
    const { rows } = await (await this.connected()).query(EXTEND, [held, this.lease]);
    const stale = new Set(rows.map(({ token }) => token));
    this.queue = this.queue.filter(({ token }) => !stale.has(token));
    this.extended = performance.now();
  }

  /** Starts what may: of one key one delivery at a time, in order. */
  private start(): void {
    const busy = new Set([...this.running].map(lane));
    this.queue = this.queue.filter((message) => {
      const own = lane(message);
      if (own !== undefined && busy.has(own)) return true;
      busy.add(own);
      this.running.add(message);
      void this.deliver(message);
      return false;
    });
  }

  private async deliver(message: Message): Promise<void> {
    const since = performance.now();
    let error: unknown;
    try {
      const deliver = async () => this.handler(message);
      await (this.options.hooks?.delivering?.(message, deliver) ?? deliver());
      this.answers.complete.push(message.token);
    } catch (caught) {
      error = caught ?? new Error("rejected without a reason");
      this.answers.fail.push(message.token);
      this.answers.errors.push(String(error instanceof Error ? error.message : error).replaceAll("\0", " "));
      // The server sends the younger leases of the key back with it.
      const own = lane(message);
      this.queue = this.queue.filter((younger) => own === undefined || lane(younger) !== own);
    }
    this.running.delete(message);
    this.options.hooks?.ended?.(message, error, performance.now() - since);
    this.wake();
  }

  private at?: pg.ClientConfig;

  private async connected(): Promise<pg.Client> {
    if (this.client) return this.client;
    let last: unknown = new Error("none of the servers takes writes");
    for (const config of [this.options.connect].flat()) {
      const client = new pg.Client(config);
      client.on("error", () => {
        if (this.client === client) this.client = undefined;
      });
      try {
        await client.connect();
        if ((await client.query(WRITES)).rows[0].writes) {
          this.at = config;
          return (this.client = client);
        }
      } catch (error) {
        last = error;
      }
      await client.end().catch(() => {});
    }
    throw last;
  }

  private async disconnect(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    await client?.end().catch(() => {});
  }
}

const codeOf = (error: unknown) => (error instanceof pg.DatabaseError ? error.code : undefined);

/** The connection or the server is gone, going or no primary any more (25006), rather than a statement wrong. */
function isPassing(error: unknown): boolean {
  const code = codeOf(error);
  return code === undefined || ["25006", "08", "40", "53", "57"].some((start) => code.startsWith(start));
}
