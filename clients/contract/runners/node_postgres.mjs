// Runner for postgres.js (postgres). Mode: prepare, pipeline, plain. Parameters have the types that the server infers.
import readline from 'node:readline'
import postgres from 'postgres'

const mode = JSON.parse(process.argv[2])
const text = (from, to) => ({ to, from: [from], serialize: (x) => x, parse: (x) => x })
const sql = postgres({
  max: 1, // a transaction of this runner is on the one connection
  prepare: Boolean(mode.prepare),
  fetch_types: false,
  onnotice: () => {},
  types: mode.plain ? {} : {
    json: text(3802, 3802), // jsonb as text keeps all digits of numbers
    date: text(1184, 1184), // timestamptz as text keeps microseconds
    uuids: { to: 2951, from: [2951], serialize: array, parse: (x) => x },
  },
})

function array(value) {
  return Array.isArray(value) ? '{' + value.map((item) => item === null ? 'NULL' : array(item)).join(',') + '}' : value
}

const parameter = ([type, value]) => type === 'uuid[]' && value !== null ? (mode.plain ? value : sql.typed(value, 2951)) : value

async function execute(on, { sql: statement, params }) {
  const rows = await on.unsafe(statement, params.map(parameter), { prepare: Boolean(mode.prepare) }).values()
  return { columns: (rows.columns ?? []).map((c) => c.name), rows: [...rows] }
}

async function answer(request) {
  if (request.do) return await sql.unsafe(request.do), { columns: [], rows: [] }
  if (!request.batch) return execute(sql, request)
  if (mode.pipeline) return { results: await sql.begin((inner) => Promise.all(request.batch.map((r) => execute(inner, r)))) }
  return {
    results: await sql.begin(async (inner) => {
      const results = []
      for (const r of request.batch) results.push(await execute(inner, r))
      return results
    }),
  }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  let said
  try {
    said = await answer(JSON.parse(line))
  } catch (error) {
    said = { error: /^[0-9A-Z]{5}$/.test(error.code) ? error.code : 'client', message: String(error.message) }
  }
  process.stdout.write(JSON.stringify(said) + '\n')
}
await sql.end()
