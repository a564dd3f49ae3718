"""Runner for asyncpg. Mode: prepare. Parameters have the types that the server infers; results are always binary."""

import asyncio
import datetime
import json
import sys
import uuid

import asyncpg

mode = json.loads(sys.argv[1])


def parameter(type, value):
    if value is None or type == "text":
        return value
    if type == "uuid[]":
        return [parameter("uuid[]" if isinstance(item, list) else "uuid", item) for item in value]
    if type == "timestamptz" and "infinity" not in value:
        return datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value  # uuid and jsonb are given as text, and jsonb comes as text


def plain(value):
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return value


async def execute(connection, request):
    if not request["params"]:
        if not request["sql"].startswith("SELECT"):
            await connection.execute(request["sql"])
            return {"columns": [], "rows": []}
    rows = await connection.fetch(request["sql"], *[parameter(*p) for p in request["params"]])
    return {"columns": list(rows[0].keys()) if rows else [], "rows": [[plain(value) for value in row] for row in rows]}


async def answer(connection, request):
    if "do" in request:
        await connection.execute(request["do"])
        return {"columns": [], "rows": []}
    if "batch" in request:
        async with connection.transaction():
            return {"results": [await execute(connection, inner) for inner in request["batch"]]}
    return await execute(connection, request)


async def main():
    # behind a pool in transaction mode, no cache of prepared statements
    connection = await asyncpg.connect(statement_cache_size=100 if mode.get("prepare") else 0)
    for line in sys.stdin:
        try:
            said = await answer(connection, json.loads(line))
        except asyncpg.PostgresError as error:
            server = getattr(error, "severity", None)  # asyncpg raises some of these itself
            said = {"error": error.sqlstate if server else "client", "message": str(error)}
        except (asyncpg.InterfaceError, ValueError, TypeError) as error:
            said = {"error": "client", "message": str(error)}
        print(json.dumps(said), flush=True)


asyncio.run(main())
