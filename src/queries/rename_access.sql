-- Roles that were renamed, or made since.
UPDATE outbox.access AS a SET role = r.rolname FROM pg_roles AS r
 WHERE r.oid = a.number AND r.rolname <> a.role OR a.number IS NULL AND r.rolname = a.role
