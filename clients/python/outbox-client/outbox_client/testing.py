"""An outbox in memory, for the tests of programs that use one: no database, a clock that the test moves.

It has the functions of the extension, with their arguments, errors and states, and passes the core of the contract's cases. It has
no transactions: each call is committed. What a program does in transactions of its own wants the extension itself, in a transaction
that the test rolls back.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from outbox_client.arguments import (
    MANY, OutboxError, cut, element_of, json_of, moment, name, required, sized, uuid7, uuid_of, within,
)  # fmt: skip
from outbox_client.messages import Message

SETTINGS = {  # name: default, range of an override
    "max_attempts": (8, 1, 50), "backoff_seconds": (30, 1, 3600), "backoff_max_seconds": (3600, 1, 86400),
    "lease_seconds": (60, 10, 3600), "batch_size": (50, 1, 500), "retention_days": (7, 1, 3650),
}  # fmt: skip


@dataclass
class Stored:
    """A message and its state: `place` is ready, waiting, delivered or dead."""

    id: UUID
    topic: str
    type: str
    payload: str
    key: str | None
    headers: str | None
    occurred_at: datetime
    available_at: datetime | None
    place: str = "ready"
    attempts: int = 0
    token: UUID | None = None
    owner: str | None = None
    leased_until: datetime | None = None
    ended_at: datetime | None = None
    last_error: str | None = None

    def let_go(self, place: str) -> None:
        self.place, self.token, self.leased_until = place, None, None


class Outbox:
    def __init__(self, roles: frozenset[str] = frozenset({"postgres"})) -> None:
        self.roles, self.rights = roles, set()
        self.issued: dict[UUID, str] = {}  # every token, and its message's topic
        self.messages: list[Stored] = []
        self.topics: dict[str, dict[str, Any]] = {}
        self.paused: set[str] = set()
        self.markers: set[tuple[str, UUID]] = set()
        self.totals: dict[str, dict[str, int]] = {}

    # -- the clock ---------------------------------------------------------------------------

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def move(self, seconds: float) -> None:
        """Time passes: whatever was or will be is so much earlier."""
        for message in self.messages:
            for at in ("occurred_at", "available_at", "leased_until", "ended_at"):
                if getattr(message, at):
                    setattr(message, at, getattr(message, at) - timedelta(seconds=seconds))

    # -- producers ---------------------------------------------------------------------------

    def append(self, topic, type, payload, id=None, available_at=None, key=None, headers=None) -> UUID:
        name("topic", topic)
        return self.store(topic, type, payload, id, moment("available_at", available_at), key, headers)

    def append_batch(self, topic, messages) -> list[UUID]:
        name("topic", topic)
        elements = json_of("messages", required("messages", messages))
        if not isinstance(elements, list):
            raise OutboxError("22023", "messages must be a JSON array")
        if len(elements) > MANY:
            raise OutboxError("54000", "messages has too many elements")
        before, stored = len(self.messages), []
        try:
            for element in elements:
                stored.append(self.store(topic, *element_of(element)))
        except OutboxError:
            del self.messages[before:]
            raise
        return stored

    def store(self, topic, type, payload, id, available_at, key, headers) -> UUID:
        name("type", type)
        sized("payload", payload)
        if id is not None:
            id = uuid_of("id", id)
        if key is not None:
            name("key", key)
        if headers is not None and not isinstance(json_of("headers", sized("headers", headers)), dict):
            raise OutboxError("22023", "headers must be a JSON object")
        if id is not None and any(message.id == id for message in self.messages):
            return id
        due = available_at if available_at and available_at > self.now() else None
        message = Stored(id or uuid7(), topic, type, payload, key, headers, self.now(), due, "waiting" if due else "ready")
        self.messages.append(message)
        return message.id

    # -- workers -----------------------------------------------------------------------------

    def claim(self, owner, topic=None, batch_size=None, lease_seconds=None, wait_seconds=0) -> list[Message]:
        """Leases as the extension does. A claim that waits moves the clock to what it waits for, or returns at once."""
        name("owner", owner)
        if topic is not None:
            name("topic", topic)
        within("batch_size", batch_size, 1, 500)
        within("lease_seconds", lease_seconds, 1, 43200)
        within("wait_seconds", required("wait_seconds", wait_seconds), 0, 60)
        self.record_deaths()
        taken = self.lease(owner, topic, batch_size, lease_seconds)
        if not taken and (seconds := self.next_event(topic)) is not None and seconds <= wait_seconds:
            self.move(seconds)
            self.record_deaths()
            taken = self.lease(owner, topic, batch_size, lease_seconds)
        return [delivery(message) for message in taken]

    def next_event(self, topic) -> float | None:
        """Seconds until a message comes due or a lease ends."""
        times = (
            one.available_at if one.place == "waiting" else one.leased_until
            for one in self.messages if topic in (None, one.topic) and one.place in ("ready", "waiting")
        )  # fmt: skip
        seconds = [(at - self.now()).total_seconds() for at in times if at]
        return min((max(0.0, one) for one in seconds), default=None)

    def lease(self, owner, topic, batch_size, lease_seconds) -> list[Stored]:
        size, now = batch_size or self.setting(topic, "batch_size"), self.now()
        taken: list[Stored] = []
        for message in self.messages:
            if len(taken) == size:
                break
            if topic in (None, message.topic) and self.is_claimable(message, taken):
                if message.token:  # its lease ran out: the younger ones of its key go back with it
                    self.send_back(message)
                seconds = lease_seconds or self.setting(message.topic, "lease_seconds")
                message.place, message.token, message.owner = "ready", uuid4(), owner
                message.attempts, message.leased_until = message.attempts + 1, now + timedelta(seconds=seconds)
                self.issued[message.token] = message.topic
                taken.append(message)
        return taken

    def wait(self, topic=None, wait_seconds=60) -> None:
        """Returns at once."""
        if topic is not None:
            name("topic", topic)
        within("wait_seconds", required("wait_seconds", wait_seconds), 0, 60)

    def is_claimable(self, message: Stored, taken: list[Stored]) -> bool:
        if message.topic in self.paused or not self.is_due(message):
            return False
        older = self.messages[: self.messages.index(message)] if message.key is not None else []
        blocks = ("ready", "waiting", "dead") if self.setting(message.topic, "block_on_dead") else ("ready", "waiting")
        same = (one for one in older if (one.topic, one.key) == (message.topic, message.key) and one not in taken)
        return not any(one.place in blocks for one in same)

    def is_due(self, message: Stored) -> bool:
        now = self.now()
        if message.place == "waiting":
            return message.available_at <= now
        return message.place == "ready" and (message.leased_until is None or message.leased_until <= now)

    def record_deaths(self) -> None:
        for message in self.messages:
            if self.is_due(message) and message.attempts >= self.setting(message.topic, "max_attempts"):
                ran_out = message.token is not None
                at = message.leased_until if ran_out else self.now()
                self.die(message, "lease expired" if ran_out else message.last_error or "no attempts left", at)

    def complete(self, token) -> bool:
        message = self.holder(uuid_of("token", token, nil=True))
        if message is None:
            return False
        message.let_go("delivered")
        message.ended_at = self.now()
        self.count(message.topic, "delivered")
        return True

    def complete_batch(self, tokens) -> list[tuple[UUID, bool]]:
        if any(isinstance(token, list) for token in required("tokens", tokens)):
            raise OutboxError("22023", "tokens has more than one dimension")
        if len(tokens) > MANY:
            raise OutboxError("54000", "tokens has too many elements")
        return [(token, self.complete(token)) for token in [uuid_of("tokens", token, nil=True) for token in tokens]]

    def fail(self, token, error=None, retry_at=None) -> str | None:
        token, retry_at = uuid_of("token", token, nil=True), moment("retry_at", retry_at)
        message = self.holder(token)
        if message is None:
            return None
        self.count(message.topic, "failed")
        if message.attempts >= self.setting(message.topic, "max_attempts"):
            self.die(message, cut(error), self.now())
            return "dead"
        first, longest = self.setting(message.topic, "backoff_seconds"), self.setting(message.topic, "backoff_max_seconds")
        delay = timedelta(seconds=min(first * 2 ** (message.attempts - 1), longest))
        message.let_go("waiting")
        message.owner, message.last_error = None, cut(error)
        message.available_at = max(retry_at, self.now()) if retry_at else self.now() + delay
        self.send_back(message)
        return "waiting"

    def abandon(self, token, error=None) -> bool:
        message = self.holder(uuid_of("token", token, nil=True))
        if message is None:
            return False
        self.count(message.topic, "failed")
        self.die(message, cut(error), self.now())
        return True

    def extend(self, token, lease_seconds=None) -> datetime | None:
        token = uuid_of("token", token, nil=True)
        within("lease_seconds", lease_seconds, 1, 43200)
        message = self.holder(token)
        if message is None:
            return None
        seconds = lease_seconds or self.setting(message.topic, "lease_seconds")
        message.leased_until = self.now() + timedelta(seconds=seconds)
        return message.leased_until

    def release(self, token) -> bool:
        message = self.holder(uuid_of("token", token, nil=True))
        if message is None:
            return False
        self.give_back(message)
        self.send_back(message)
        return True

    def holder(self, token: UUID) -> Stored | None:
        """The message of which this is the current lease."""
        for message in self.messages:
            if message.token == token:
                return message
        if token in self.issued:
            self.count(self.issued[token], "stale")
        return None

    def give_back(self, message: Stored) -> None:
        message.let_go("ready")
        message.owner, message.attempts = None, message.attempts - 1

    def send_back(self, head: Stored) -> None:
        if head.key is None:
            return
        for younger in self.messages[self.messages.index(head) + 1 :]:
            if (younger.topic, younger.key) == (head.topic, head.key) and younger.token:
                self.give_back(younger)

    def die(self, message: Stored, error: str | None, at: datetime) -> None:
        message.let_go("dead")
        message.last_error, message.ended_at = error, at
        if self.setting(message.topic, "block_on_dead"):
            self.send_back(message)

    # -- consumers and operators -------------------------------------------------------------

    def consume_once(self, consumer, message_id) -> bool:
        name("consumer", consumer)
        marker = (consumer, uuid_of("message_id", message_id))
        is_new = marker not in self.markers
        self.markers.add(marker)
        return is_new

    def retry_dead(self, id) -> bool:
        id = uuid_of("id", id)
        self.record_deaths()
        return any(self.revive(message) for message in self.messages if message.id == id and message.place == "dead")

    def redrive(self, topic, type=None, max_messages=None, dry_run=False) -> int:
        return self.each("dead", self.revive, topic, type, max_messages, dry_run)

    def discard(self, topic, type=None, before=None, max_messages=None, dry_run=False) -> int:
        before = moment("before", before)

        def discard(message: Stored) -> bool:
            self.die(message, "discarded", self.now())
            return True

        return self.each("pending", discard, topic, type, max_messages, dry_run, before)

    def each(self, state, change, topic, type, max_messages, dry_run, before=None) -> int:
        name("topic", topic)
        if type is not None:
            name("type", type)
        within("max_messages", max_messages, 1, 2**31 - 1)
        required("dry_run", dry_run)
        self.record_deaths()
        now = self.now()
        chosen = [
            message for message in self.messages
            if message.topic == topic and type in (None, message.type) and (before is None or message.occurred_at < before)
            and (message.place == state or state == "pending" and message.place in ("ready", "waiting")
                 and not (message.leased_until and message.leased_until > now))
        ][:max_messages]  # fmt: skip
        if not dry_run:
            for message in chosen:
                change(message)
        return len(chosen)

    def revive(self, message: Stored) -> bool:
        message.place, message.attempts, message.owner, message.available_at, message.ended_at = "ready", 0, None, None, None
        return True

    def purge(self, max_messages=10000) -> int:
        within("max_messages", required("max_messages", max_messages), 1, 2**31 - 1)
        self.record_deaths()
        past = [
            message for message in self.messages
            if message.place in ("delivered", "dead")
            and self.now() - message.ended_at > timedelta(days=self.setting(message.topic, "retention_days"))
        ][:max_messages]  # fmt: skip
        self.messages = [message for message in self.messages if message not in past]
        return len(past)

    def pause(self, topic) -> bool:
        name("topic", topic)
        changed = topic not in self.paused
        self.paused.add(topic)
        return changed

    def resume(self, topic) -> bool:
        name("topic", topic)
        changed = topic in self.paused
        self.paused.discard(topic)
        return changed

    def set_topic(self, topic, settings) -> None:
        name("topic", topic)
        given = json_of("settings", required("settings", settings))
        if not isinstance(given, dict):
            raise OutboxError("22023", "settings must be a JSON object")
        for setting, value in given.items():
            if setting == "block_on_dead":
                if value is not None and not isinstance(value, bool):
                    raise OutboxError("22023", "block_on_dead must be a boolean")
            elif setting not in SETTINGS:
                raise OutboxError("22023", f"there is no setting {setting}")
            elif value is not None:
                if isinstance(value, bool) or not isinstance(value, (int, Decimal)) or value != int(value):
                    raise OutboxError("22023", f"{setting} must be a whole number")
                within(setting, value, *SETTINGS[setting][1:])
        overrides = self.topics.setdefault(topic, {})
        for setting, value in given.items():
            overrides.pop(setting, None) if value is None else overrides.__setitem__(setting, value)

    def setting(self, topic: str | None, setting: str) -> Any:
        default = False if setting == "block_on_dead" else SETTINGS[setting][0]
        value = self.topics.get(topic, {}).get(setting, default)
        return int(value) if isinstance(value, Decimal) else value

    def grant_access(self, role_name, capability) -> None:
        self.rights.add(self.right(role_name, capability))

    def revoke_access(self, role_name, capability) -> None:
        self.rights.discard(self.right(role_name, capability))

    def right(self, role_name, capability) -> tuple[str, str]:
        required("role_name", role_name)
        of, colon, topic = required("capability", capability).partition(":")
        if of not in (("producer", "worker") if colon else ("producer", "worker", "operator", "monitor")):
            raise OutboxError("22023", f"there is no capability {capability}")
        if colon:
            name("topic", topic)
        if role_name not in self.roles:
            raise OutboxError("42704", f"there is no role {role_name}")
        return role_name, capability

    def cloudevent(self, id) -> str | None:
        id = uuid_of("id", id)
        for message in self.messages:
            if message.id == id:
                headers = json_of("headers", message.headers) if message.headers else {}
                fields = {
                    "specversion": "1.0", "id": str(id), "source": f"/memory/{message.topic}", "type": message.type,
                    "time": message.occurred_at.isoformat(), "subject": message.key,
                    "datacontenttype": headers.get("content-type", "application/json"),
                    "traceparent": headers.get("traceparent"), "tracestate": headers.get("tracestate"),
                }  # fmt: skip
                given = json.dumps({field: value for field, value in fields.items() if value is not None})
                return f'{given[:-1]}, "data": {message.payload}}}'
        return None

    # -- views -------------------------------------------------------------------------------

    def state(self, message: Stored) -> str:
        if message.place in ("delivered", "dead"):
            return message.place
        if message.leased_until and message.leased_until > self.now():
            return "leased"
        if message.token and message.attempts >= self.setting(message.topic, "max_attempts"):
            return "dead"
        return "ready" if self.is_due(message) else "waiting"

    def message(self, id) -> list[dict[str, Any]]:
        return [
            {
                "id": one.id, "topic": one.topic, "event_type": one.type, "payload": one.payload, "created_at": one.occurred_at,
                "available_at": one.available_at, "attempts": one.attempts, "leased_until": one.leased_until,
                "lease_owner": one.owner, "delivered_at": one.ended_at if one.place == "delivered" else None,
                "dead_at": (one.ended_at or one.leased_until) if self.state(one) == "dead" else None,
                "last_error": "lease expired" if self.state(one) == "dead" and one.place != "dead" else one.last_error,
                "key": one.key, "headers": one.headers, "state": self.state(one),
            }
            for one in self.messages if one.id == UUID(str(id))
        ]  # fmt: skip

    def stats(self, topic) -> list[dict[str, Any]]:
        states = [self.state(one) for one in self.messages if one.topic == topic]
        counts = {state: states.count(state) for state in ("ready", "leased", "waiting", "dead")}
        totals = {f"{what}_total": self.totals.get(topic, {}).get(what, 0) for what in ("delivered", "failed", "stale")}
        ready = [one for one in self.messages if one.topic == topic and self.state(one) == "ready"]
        since = min((one.available_at or one.occurred_at for one in ready), default=None)
        age = int((self.now() - since).total_seconds()) if since else None
        return [{"topic": topic, **counts, "oldest_ready_seconds": age, **totals}] if any({**counts, **totals}.values()) else []

    def status(self, name) -> list[dict[str, Any]]:
        return [{"name": "version", "ok": True, "detail": "in memory"}] if name == "version" else []

    def count(self, topic: str, what: str) -> None:
        counts = self.totals.setdefault(topic, {})
        counts[what] = counts.get(what, 0) + 1


def delivery(message: Stored) -> Message:
    headers = None if message.headers is None else json.loads(message.headers)
    return Message(
        message.id, message.token, message.topic, message.type, message.payload, message.key, headers, message.attempts
    )
