// A load at a fixed pace, seen from Node: the producer's clock, and what workers tell about claims and completions.

let claims = [];
let late = [];
const tell = () => {
  console.log(JSON.stringify({ claims, late }));
  claims = [];
  late = [];
};

export let over = false;
export const claimed = (ms) => claims.push(Math.round(ms * 1000) / 1000);
export const completed = (at) => late.push(Math.round(Date.now() - at * 1000));
export const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Tells what is noted, until standard input ends; then `stop` is called, and the process ends.
export const worker = (stop = () => {}) => {
  setInterval(tell, 100);
  process.stdin.resume().on("end", async () => {
    over = true;
    await stop();
    tell();
    process.exit(0);
  });
};

// Calls `append(payloads)` for each group when it is due.
export const producer = async (given, append) => {
  worker();
  const body = JSON.parse(given.payload);
  const calls = Math.floor((given.rate * given.seconds) / given.group);
  for (let call = 0; call < calls && !over; call++) {
    const at = given.start + (call * given.group) / given.rate;
    const early = at * 1000 - Date.now();
    if (early > 0) await rest(early);
    await append(Array.from({ length: given.group }, () => ({ ...body, at })));
  }
};
