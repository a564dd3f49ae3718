"""The systems side by side, in the order in which they are measured and reported."""

from systems.graphile_worker import GraphileWorker
from systems.handwritten import Handwritten
from systems.outbox import Outbox
from systems.pg_boss import PgBoss
from systems.pgmq import Pgmq, PgmqDelete
from systems.pgq import Pgq
from systems.plain import Plain

ALL = [Outbox(), Plain(), Handwritten(), Pgmq(), PgmqDelete(), Pgq(), GraphileWorker(), PgBoss()]
