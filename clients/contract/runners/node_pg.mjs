// Runner for node-postgres (pg). Mode: prepare, plain.
import readline from 'node:readline'
import pg from 'pg'

const mode = JSON.parse(process.argv[2])
const JSONB = 3802, TIMESTAMPTZ = 1184
const types = {
  // jsonb as text keeps all digits of numbers, timestamptz as text all microseconds; bigint is text by default
  getTypeParser: (oid, format) => [JSONB, TIMESTAMPTZ].includes(oid) ? (text) => text : pg.types.getTypeParser(oid, format),
}

const client = new pg.Client(mode.plain ? {} : { types })
await client.connect()
const names = new Map()

function parameter([type, value]) {
  if (type === 'timestamptz' && /\.\d{3}Z$/.test(value)) return new Date(value)
  return value
}

async function execute({ sql, params }) {
  const query = { text: sql, values: params.map(parameter), rowMode: 'array' }
  if (mode.prepare) {
    if (!names.has(sql)) names.set(sql, `s${names.size}`)
    query.name = names.get(sql)
  }
  const done = await client.query(query)
  return { columns: done.fields.map((f) => f.name), rows: done.rows }
}

async function answer(request) {
  if (request.do) return await client.query(request.do), { columns: [], rows: [] }
  if (!request.batch) return execute(request)
  await client.query('BEGIN')
  try {
    const results = []
    for (const inner of request.batch) results.push(await execute(inner))
    await client.query('COMMIT')
    return { results }
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
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
await client.end()
