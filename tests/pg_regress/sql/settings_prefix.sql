-- settings_prefix: a misspelt setting is an error in a session that has loaded the library. PostgreSQL 14 cannot reserve a
-- prefix: it warns when the library is loaded of what was set before, and takes everything after that.
LOAD 'outbox';
SET outbox.batchsize = 10;
SET outbox.lease_secs TO '1 min';
SHOW outbox.max_attempt;
SELECT set_config('outbox.no_such_setting', 'x', false);
SELECT current_setting('outbox.no_such_setting', true) IS NULL AS absent;
