-- discard: ready and waiting messages of a topic become dead.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt, outbox.processed, outbox.topic;
SELECT count(outbox.append('discard', CASE WHEN n % 2 = 1 THEN 'odd' ELSE 'even' END, to_jsonb(n),
                           available_at => CASE n WHEN 1 THEN now() + interval '1 hour' WHEN 4 THEN now() + interval '2 hours' END))
  FROM generate_series(1, 6) AS n;
SELECT count(outbox.append('other', 'odd', '7'));

-- A dry run counts, with every limit, and changes nothing.
SELECT outbox.discard('discard', dry_run => true), outbox.discard('discard', 'odd', dry_run => true),
       outbox.discard('discard', 'odd', NULL, 2, true), outbox.discard('discard', 'none', dry_run => true),
       outbox.discard('none', dry_run => true), outbox.discard('discard', before => now() - interval '1 day', dry_run => true);
SELECT state, count(*) FROM outbox.message GROUP BY state ORDER BY state;

-- Oldest first over ready and waiting ones, of one type, before a time, at most so many.
SELECT outbox.discard(topic => 'discard', type => 'odd', before => now() + interval '1 day', max_messages => 2, dry_run => false);
SELECT payload, state, attempts, last_error, lease_owner, dead_at IS NOT NULL AS dated FROM outbox.message ORDER BY payload;
UPDATE outbox.envelope SET occurred_at = '2020-01-01' WHERE payload = '6';
SELECT outbox.discard('discard', before => '2020-01-02');
SELECT payload FROM outbox.message WHERE state = 'dead' ORDER BY payload;

-- Leased ones stay; one whose lease ran out does not, and its token is stale.
CREATE TEMP TABLE lease AS SELECT * FROM outbox.claim('worker', 'discard', batch_size => 1);
SELECT payload FROM lease;
SELECT outbox.discard('discard', max_messages => 1);
SELECT payload, state FROM outbox.message WHERE topic = 'discard' ORDER BY payload;
SELECT outbox.discard('discard', dry_run => true), outbox.discard('discard');
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE lease IS NOT NULL;
SELECT outbox.discard('discard', dry_run => true), outbox.discard('discard');
SELECT outbox.complete(token) FROM lease;
SELECT payload, state, attempts, last_error FROM outbox.message ORDER BY payload;

-- They are given another life as other dead messages are.
SELECT outbox.redrive('discard'), outbox.discard('discard', dry_run => true);
SELECT payload, attempts FROM outbox.claim('worker', 'discard');

-- Not those that are dead, recorded or not, and not delivered ones.
SET outbox.max_attempts = 1;
UPDATE outbox.delivery SET leased_until = clock_timestamp() WHERE lease IS NOT NULL;
SELECT outbox.discard('discard', dry_run => true), outbox.discard('discard');
RESET outbox.max_attempts;
SELECT outbox.complete(token) FROM outbox.claim('worker', 'other');
SELECT outbox.discard('other');

-- Rolled back, they live.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT outbox.append('discard', 'e', '1') IS NOT NULL AS appended;
BEGIN;
SELECT outbox.discard('discard');
SELECT payload FROM outbox.claim('worker', 'discard');
ROLLBACK;
SELECT payload FROM outbox.claim('worker', 'discard');

-- A key: the next one has its turn. Parked messages are discarded in their place.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT count(outbox.append('discard', 'e', to_jsonb(n), key => 'k', available_at => CASE n WHEN 1 THEN now() + interval '1 hour' END))
  FROM generate_series(1, 4) AS n;
SELECT count(*) FROM outbox.claim('worker', 'discard');
SELECT place, count(*) FROM outbox.delivery GROUP BY place ORDER BY place;
SELECT outbox.discard('discard', max_messages => 2);
SELECT payload, state FROM outbox.message ORDER BY payload;
SELECT payload FROM outbox.claim('worker', 'discard');
-- A topic whose dead messages block their keys.
TRUNCATE outbox.envelope, outbox.delivery, outbox.receipt;
SELECT outbox.set_topic('discard', '{"block_on_dead": true}');
SELECT count(outbox.append('discard', 'e', to_jsonb(n), key => 'k')) FROM generate_series(1, 3) AS n;
SELECT outbox.discard('discard', max_messages => 1);
SELECT count(*) FROM outbox.claim('worker', 'discard');
SELECT outbox.discard('discard'), outbox.redrive('discard');
SELECT payload FROM outbox.claim('worker', 'discard');

-- Errors.
SELECT outbox.discard(NULL);
SELECT outbox.discard('');
SELECT outbox.discard('t', '');
SELECT outbox.discard('t', before => 'infinity');
SELECT outbox.discard('t', max_messages => 0);
SELECT outbox.discard('t', dry_run => NULL);
