-- A plain CREATE SCHEMA: if a schema of this name exists, the installation stops here.
CREATE SCHEMA outbox;

COMMENT ON SCHEMA outbox IS
'Transactional outbox: append in your transaction, claim and answer from workers in any language';
