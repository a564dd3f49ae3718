"""The double behind the contract's cases: python3 clients/contract/run.py --double 'python3 …/double.py'"""

import json
import sys

from outbox_client.testing import Outbox, OutboxError

CLAIMED = "id", "token", "topic", "type", "payload", "occurred_at", "key", "headers", "attempts", "leased_until"
VOID = "set_topic", "grant_access", "revoke_access"
outbox = Outbox()


def rows(function, given):
    answer = getattr(outbox, function)(**given)
    if function == "wait":
        return []
    if function == "claim":
        stored = {message.token: message for message in outbox.messages if message.token}
        return [{column: getattr(stored[one.token], column) for column in CLAIMED} for one in answer]
    if function == "complete_batch":
        return [{"token": token, "completed": completed} for token, completed in answer]
    if isinstance(answer, list):
        return [one if isinstance(one, dict) else {function: one} for one in answer]
    return [{function: "" if function in VOID else answer}]


def text(value):
    return value if value is None or isinstance(value, (bool, int, str)) else value.isoformat() if hasattr(value, "isoformat") else str(value)


def answer(request):
    if "pass" in request:
        outbox.move(request["pass"])
    if "batch" in request:
        return {"results": [answer(one) for one in request["batch"]]}
    if "call" not in request:
        return {"columns": [], "rows": []}
    found = rows(request["call"], request.get("with", {}))
    columns = list(found[0]) if found else []
    return {"columns": columns, "rows": [[text(row[column]) for column in columns] for row in found]}


for line in sys.stdin:
    try:
        said = answer(json.loads(line))
    except OutboxError as error:
        said = {"error": error.sqlstate, "message": str(error)}
    except (AttributeError, TypeError, ValueError) as error:
        said = {"error": "client", "message": repr(error)}
    print(json.dumps(said), flush=True)
