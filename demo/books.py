"""The books: what the shops say they sent, what the consumer says it got, what the database holds.

Three independent records of the same messages. They balance if every committed message is
delivered and invoiced once or dead, nothing else was ever delivered, and no two leases of a
message overlapped; and none began before an older one of its key.
"""

import calendar
import re
import time
from collections import Counter, defaultdict, namedtuple

STORED = "SELECT id::text, state FROM outbox.message"
REASONS = """SELECT DISTINCT coalesce(last_error, 'for no given reason') FROM outbox.message
              WHERE state = 'dead' ORDER BY 1"""
DELAYED = """SELECT id::text, extract(epoch FROM available_at)::float8 FROM outbox.message
              WHERE state = 'delivered' AND available_at > created_at"""
INVOICED = "SELECT message_id::text FROM billing.invoice"
ROUNDING = 1e-5  # seconds; times are microseconds in the server and floats here

Delivery = namedtuple("Delivery", "lease_start lease_end at problem intact")


class Books:
    def __init__(self, lease_seconds):
        self.lease_seconds = lease_seconds
        self.fates = Counter()  # transactions
        self.found_out = Counter()  # those whose COMMIT the server did not survive to answer
        self.appended = {}  # id: key
        self.rolled_back = set()
        self.unreadable = set()
        self.deliveries = defaultdict(list)  # by message id
        self.accepted = Counter()  # how often, by message id
        self.held = {}  # owner: ids of the batch that the consumer did not answer
        self.first = self.last = None  # time of the first append and of the last new delivery

    # -- taking down ---------------------------------------------------------------------------

    def from_shop(self, record):
        self.first = min(self.first or record["at"], record["at"])
        self.fates[record["fate"]] += 1
        self.found_out[record["fate"]] += record["found_out"]
        kept = {id: key for id, key in record["kept"]}
        self.rolled_back.update(record["undone"])
        if record["fate"] == "committed":
            self.appended.update(kept)
            self.unreadable.update(filter(None, [record["unreadable"]]))
        else:
            self.rolled_back.update(kept)

    def from_consumer(self, record):
        for id, _, leased_until, problem, intact in record["messages"]:
            end = seconds(leased_until)
            delivery = Delivery(end - self.lease_seconds, end, record["at"], problem, intact)
            self.deliveries[id].append(delivery)
            if not problem and record["held"] != "before":
                self.accepted[id] += 1
                self.last = record["at"]
        if record["held"]:
            self.held[record["owner"]] = {id for id, *_ in record["messages"]}

    @property
    def redelivered(self):
        return sum(map(len, self.deliveries.values())) - len(self.deliveries)

    @property
    def waiting(self):
        """Committed and not yet accepted, but for the message that never will be."""
        return len(self.appended.keys() - self.accepted.keys() - self.unreadable)

    def rate(self):
        return len(self.accepted) / max(self.last - self.first, 0.1) if self.last else 0

    # -- balancing -----------------------------------------------------------------------------

    def balance(self, connection):
        """Returns what is wrong, as sentences; keeps what the table shows."""
        stored = dict(connection.execute(STORED).fetchall())
        due = dict(connection.execute(DELAYED).fetchall())
        self.reasons = [reason for (reason,) in connection.execute(REASONS)]
        invoices = Counter(id for (id,) in connection.execute(INVOICED))
        sent, seen = self.appended.keys(), self.deliveries.keys()
        self.delivered = {id for id, state in stored.items() if state == "delivered"}
        self.dead = {id for id, state in stored.items() if state == "dead"}
        accepted = self.accepted.keys()
        self.lost = sent - accepted - self.dead
        self.repeated = {id for id, deliveries in self.deliveries.items() if len(deliveries) > 1}
        checks = [
            ("were committed and are neither delivered nor dead (lost)", self.lost),
            ("were committed and are not stored", sent - stored.keys()),
            ("are stored and were never committed", stored.keys() - sent),
            ("were rolled back and delivered all the same", seen & self.rolled_back),
            ("were delivered and never sent", seen - sent - self.rolled_back),
            ("are marked delivered and the consumer never accepted them", self.delivered - accepted),
            ("were accepted and are not marked delivered", accepted - self.delivered),
            ("are dead and should not be", self.dead - self.unreadable),
            ("always fail and are not dead", self.unreadable - self.dead),
            ("were invoiced twice", {id for id, count in invoices.items() if count > 1}),
            ("were accepted and not invoiced", accepted - invoices.keys()),
            ("were invoiced and not accepted", invoices.keys() - accepted),
            ("arrived changed", {id for id in seen if not all(d.intact for d in self.deliveries[id])}),
            ("were delivered before they were due", {id for id in due if self.is_early(id, due[id])}),
            ("had two leases at a time", set(filter(self.has_overlap, self.repeated))),
            ("overtook an older message of their key", self.overtakers()),
            *(
                (f"were held by {owner} when it was killed, and nobody got them again", ids - self.repeated)
                for owner, ids in self.held.items()
            ),
        ]
        return [sentence(ids, what) for what, ids in checks if ids]

    def is_early(self, id, due):
        return min(delivery.lease_start for delivery in self.deliveries[id]) < due - ROUNDING

    def has_overlap(self, id):
        """A lease ends when it runs out, or when the consumer's complaint let its worker fail it."""
        leases = sorted(self.deliveries[id])
        ends = [lease.at if lease.problem else lease.lease_end for lease in leases]
        return any(later.lease_start < end - ROUNDING for end, later in zip(ends, leases[1:]))

    def overtakers(self):
        """Of each key, which is one shop's own: messages whose first lease began before that of one sent earlier."""
        last, found = {}, set()
        for id, key in self.appended.items():
            if key and id in self.deliveries:
                start = min(delivery.lease_start for delivery in self.deliveries[id])
                if start < last.get(key, 0) - ROUNDING:
                    found.add(id)
                last[key] = max(start, last.get(key, 0))
        return found

    def table(self):
        gone = self.fates["rolled back"]
        twice = sum(count > 1 for count in self.accepted.values())
        rows = [
            ("appended", len(self.appended), f"in {self.fates['committed']:,} committed transactions"),
            ("rolled back", len(self.rolled_back), f"in {gone:,} whole transactions, the others in savepoints"),
            ("delivered", len(self.delivered), ""),
            ("redelivered", self.redelivered, f"deliveries beyond the first, of {len(self.repeated):,} messages"),
            ("of these", twice, "had taken effect before: consume_once refused a second invoice"),
            ("dead", len(self.dead), "; ".join(self.reasons)),
            ("lost", len(self.lost), ""),
            ("messages/s", round(self.rate()), "from the first append to the last delivery"),
        ]
        return [f"{name:>12}  {number:>9,}  {note}".rstrip() for name, number, note in rows]


def seconds(text):
    """Seconds since the epoch of a time as PostgreSQL writes it into JSON in time zone UTC."""
    whole, fraction = re.fullmatch(r"(.{19})(\.\d+)?\+00:00", text).groups()
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(fraction or 0)


def sentence(ids, what):
    return f"messages that {what}: {len(ids):,}, such as {min(ids)}"
