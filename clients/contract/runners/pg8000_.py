"""Runner for pg8000. Mode: prepare, wrap (each statement in a transaction), plain."""

import datetime
import json
import os
import sys
import uuid

import pg8000.exceptions
import pg8000.native

mode = json.loads(sys.argv[1])
connection = pg8000.native.Connection(
    os.environ["PGUSER"], host=os.environ["PGHOST"], port=int(os.environ["PGPORT"]), database=os.environ["PGDATABASE"]
)
if not mode.get("plain"):
    connection.register_in_adapter(3802, str)  # jsonb as text keeps all digits of numbers
prepared = {}
open_transaction = False


class Json(str):
    """A parameter that is JSON already."""


connection.register_out_adapter(Json, str)


def parameter(type, value):
    if value is None or type == "text":
        return value
    if type == "uuid":
        return uuid.UUID(value)
    if type == "uuid[]":
        return [parameter("uuid[]" if isinstance(item, list) else "uuid", item) for item in value]
    if type == "timestamptz" and "infinity" not in value:
        return datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    return Json(value) if type == "jsonb" else value


def plain(value):
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return value


def execute(request):
    parameters = {f"p{i}": parameter(*p) for i, p in enumerate(request["params"])}
    sql = request["sql"]
    for i in range(len(parameters), 0, -1):
        sql = sql.replace(f"${i}", f":p{i - 1}")
    if mode.get("prepare"):
        if sql not in prepared:
            prepared[sql] = connection.prepare(sql)
        rows, columns = prepared[sql].run(**parameters), prepared[sql].columns
    else:
        rows, columns = connection.run(sql, **parameters), connection.columns
    names = [column["name"] for column in columns or []]
    return {"columns": names, "rows": [[plain(value) for value in row] for row in rows or []]}


def answer(request):
    global open_transaction
    if "do" in request:
        connection.run(request["do"])
        open_transaction = request["do"] == "begin"
        return {"columns": [], "rows": []}
    if "batch" in request:
        return {"results": within(lambda: [execute(inner) for inner in request["batch"]])}
    # a statement with parameters is two messages, and a pool in transaction mode may give each another connection
    return within(lambda: execute(request)) if mode.get("wrap") and request["params"] and not open_transaction else execute(request)


def within(work):
    connection.run("BEGIN")
    try:
        done = work()
        connection.run("COMMIT")
        return done
    except Exception:
        connection.run("ROLLBACK")
        raise


for line in sys.stdin:
    try:
        said = answer(json.loads(line))
    except pg8000.exceptions.DatabaseError as error:
        said = {"error": error.args[0].get("C", "client"), "message": str(error.args[0].get("M"))}
    except (pg8000.exceptions.InterfaceError, ValueError, TypeError, AttributeError) as error:
        said = {"error": "client", "message": str(error)}
    print(json.dumps(said), flush=True)
