-- redrive: another life for the dead messages of a topic.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SELECT count(outbox.append('redrive', CASE WHEN n % 2 = 1 THEN 'odd' ELSE 'even' END, to_jsonb(n))) FROM generate_series(1, 6) AS n;
SELECT count(outbox.append('other', 'odd', '7'));
SELECT count(outbox.abandon(token, 'gave up')) FROM outbox.claim('worker');
SELECT state, count(*) FROM outbox.message GROUP BY state;

-- A dry run counts, with every limit, and changes nothing.
SELECT outbox.redrive('redrive', dry_run => true), outbox.redrive('redrive', 'odd', dry_run => true),
       outbox.redrive('redrive', 'odd', 2, true), outbox.redrive('redrive', 'none', dry_run => true),
       outbox.redrive('none', dry_run => true);
SELECT state, count(*) FROM outbox.message GROUP BY state;

-- Oldest first, of one type, at most so many.
SELECT outbox.redrive(topic => 'redrive', type => 'even', max_messages => 2, dry_run => false);
SELECT payload, state, attempts, last_error, lease_owner FROM outbox.message ORDER BY payload;
SELECT payload, attempts FROM outbox.claim('worker');
SELECT outbox.redrive('redrive', max_messages => 1);
SELECT payload FROM outbox.claim('worker');
SELECT outbox.redrive('redrive');
SELECT payload FROM outbox.claim('worker');
SELECT payload, state FROM outbox.message WHERE state = 'dead';
SELECT outbox.redrive('redrive');

-- Not the living ones: delivered, ready, leased, waiting, leased too long with attempts left.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SET outbox.max_attempts = 2;
SELECT count(outbox.append('redrive', 'e', to_jsonb(n), available_at => CASE n WHEN 1 THEN now() + interval '1 hour' END)) FROM generate_series(1, 5) AS n;
SELECT outbox.complete(token) FROM outbox.claim('worker', batch_size => 1);
SELECT count(*) FROM outbox.claim('worker', batch_size => 2);
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE seq = (SELECT min(seq) FROM outbox.delivery WHERE place = 'r');
SELECT outbox.redrive('redrive', dry_run => true), outbox.redrive('redrive');
SELECT payload, state FROM outbox.message ORDER BY payload;

-- A death that nobody has recorded is one; the recorded and the others come in one order.
SELECT count(*) FROM outbox.claim('worker');
UPDATE outbox.delivery SET attempts = 2, leased_until = clock_timestamp() WHERE lease IS NOT NULL;
SELECT payload, state, outbox.retry_dead(id) FROM outbox.message WHERE payload = '4';
SELECT payload, outbox.abandon(token) FROM outbox.claim('worker', batch_size => 1);
SELECT payload, state, last_error FROM outbox.message WHERE state = 'dead' ORDER BY payload;
SELECT outbox.redrive('redrive', max_messages => 2);
SELECT payload, state, attempts, last_error FROM outbox.message ORDER BY payload;
SELECT outbox.redrive('redrive', dry_run => true);

-- Rolled back, they stay dead.
BEGIN;
SELECT outbox.redrive('redrive');
SELECT payload FROM outbox.claim('worker');
ROLLBACK;
SELECT payload, state FROM outbox.message ORDER BY payload;

-- Errors.
SELECT outbox.redrive(NULL);
SELECT outbox.redrive('');
SELECT outbox.redrive('t', '');
SELECT outbox.redrive('t', max_messages => 0);
SELECT outbox.redrive('t', dry_run => NULL);
