/** The PostgreSQL extension outbox from TypeScript, on pg. */

export { append, appendBatch, consumeOnce, traceparent } from "./messages.js";
export type { Message, NewMessage, Querier } from "./messages.js";
export { drainOnce, runWorker } from "./worker.js";
export type { Counts, Hooks, Options } from "./worker.js";
