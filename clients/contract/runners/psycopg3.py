"""Runner for psycopg 3. Mode: prepare, binary, pipeline, plain."""

import datetime
import json
import sys
import uuid

import psycopg
from psycopg.types.json import Jsonb

mode = json.loads(sys.argv[1])
connection = psycopg.connect("", autocommit=True, prepare_threshold=0 if mode.get("prepare") else None)
# numbers keep all their digits: jsonb as text, in both formats
if not mode.get("plain"):
    connection.adapters.register_loader("jsonb", psycopg.types.string.TextLoader)


class JsonbBinaryLoader(psycopg.types.string.TextBinaryLoader):
    def load(self, data):
        return bytes(data)[1:].decode()


if not mode.get("plain"):
    connection.adapters.register_loader("jsonb", JsonbBinaryLoader)


def parameter(type, value):
    if value is None or type == "text":
        return value
    if type == "uuid":
        return uuid.UUID(value)
    if type == "uuid[]":
        return [parameter("uuid[]" if isinstance(item, list) else "uuid", item) for item in value]
    if type == "timestamptz":
        return value if "infinity" in value else datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    if type == "jsonb":
        return Jsonb(value, dumps=lambda text: text)
    return value


def plain(value):
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, bytes):  # void, in binary
        return value.decode()
    return value


def execute(request):
    cursor = connection.cursor(binary=mode.get("binary", False))
    cursor.execute(request["sql"], [parameter(*p) for p in request["params"]] or None)
    return cursor


def result(cursor):
    if cursor.description is None:
        return {"columns": [], "rows": []}
    columns = [column.name for column in cursor.description]
    return {"columns": columns, "rows": [[plain(value) for value in row] for row in cursor]}


def answer(request):
    if "do" in request:
        connection.execute(request["do"])
        return {"columns": [], "rows": []}
    if "batch" in request:
        with connection.transaction():
            if not mode.get("pipeline"):
                return {"results": [result(execute(inner)) for inner in request["batch"]]}
            with connection.pipeline():
                cursors = [execute(inner) for inner in request["batch"]]
            return {"results": [result(cursor) for cursor in cursors]}
    return result(execute(request))


for line in sys.stdin:
    try:
        said = answer(json.loads(line))
    except psycopg.Error as error:
        said = {"error": error.sqlstate or "client", "message": str(error)}
    except (ValueError, TypeError) as error:
        said = {"error": "client", "message": str(error)}
    print(json.dumps(said), flush=True)
