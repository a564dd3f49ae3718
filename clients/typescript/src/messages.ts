/** A client, a pool's client, or whatever runs a statement in the caller's transaction. */
export interface Querier {
  query(text: string, values: unknown[]): Promise<{ rows: any[] }>;
}

export interface NewMessage {
  type: string;
  /** A string is JSON text, which is stored as it is; any other value goes through JSON.stringify. */
  payload: unknown;
  /** With an id, an append is idempotent while the message is stored. */
  id?: string;
  key?: string;
  /** A string is ISO 8601 with an offset. Without it: at once. */
  availableAt?: Date | string;
  headers?: Record<string, unknown>;
}

/** One delivery. `payload` is JSON text, so that long numbers arrive as they were stored. */
export interface Message {
  id: string;
  token: string;
  topic: string;
  type: string;
  payload: string;
  key: string | null;
  headers: Record<string, unknown> | null;
  attempts: number;
}

/** Parent of the delivery's span, as W3C writes it. */
export function traceparent(message: Message): string | undefined {
  const parent = message.headers?.traceparent;
  return typeof parent === "string" ? parent : undefined;
}

const text = (payload: unknown) => (typeof payload === "string" ? payload : JSON.stringify(payload));
const time = (at?: Date | string) => (at instanceof Date ? at.toISOString() : at);
const json = (headers?: Record<string, unknown>) => (headers ? JSON.stringify(headers) : null);

/** Appends in the caller's transaction: the message exists exactly when that transaction commits. Its id. */
export async function append(client: Querier, topic: string, message: NewMessage): Promise<string> {
  const { type, payload, id, key, availableAt, headers } = message;
  const { rows } = await client.query(
    "SELECT outbox.append($1, $2, $3::text::jsonb, $4, $5::text::timestamptz, $6, $7::text::jsonb) AS id",
    [topic, type, text(payload), id ?? null, time(availableAt) ?? null, key ?? null, json(headers)],
  );
  return rows[0].id;
}

/** Appends all or none, in one round trip; the ids are in input order. */
export async function appendBatch(client: Querier, topic: string, messages: NewMessage[]): Promise<string[]> {
  const { rows } = await client.query("SELECT outbox.append_batch($1, $2::text::jsonb) AS id", [
    topic,
    `[${messages.map(element).join(",")}]`,
  ]);
  return rows.map((row) => row.id);
}

function element({ type, payload, id, key, availableAt, headers }: NewMessage): string {
  const fields = JSON.stringify({ type, id, key, available_at: time(availableAt), headers });
  // The text itself: to parse and print it would round long numbers.
  return `${fields.slice(0, -1)},"payload":${text(payload)}}`;
}

/** True exactly once per committed (consumer, message): apply the effect in the same transaction. */
export async function consumeOnce(client: Querier, consumer: string, messageId: string): Promise<boolean> {
  const { rows } = await client.query("SELECT outbox.consume_once($1, $2) AS first", [consumer, messageId]);
  return rows[0].first;
}
