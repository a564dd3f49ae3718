// When a message is in graphile-worker's hands: one runner with its default settings, which listens; jobs do nothing.
import { Logger, run } from "graphile-worker";
import pg from "pg";

const given = JSON.parse(process.argv[2]);
const pgPool = new pg.Pool({ max: 10 });
let late = [];
const tell = () => {
  console.log(JSON.stringify({ claims: [], late }));
  late = [];
};
const runner = await run({
  pgPool,
  logger: new Logger(() => (level, message) => level === "error" && console.error(message)),
  noHandleSignals: true,
  taskList: { [given.topic]: async ({ at }) => late.push(performance.timeOrigin + performance.now() - at * 1000) },
});
setInterval(tell, 50);
process.stdin.resume().on("end", async () => {
  await runner.stop();
  tell();
  process.exit(0);
});
