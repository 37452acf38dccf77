-- The low bits of a token are random, so that it is never given twice, also by a server that has lost transactions.
CREATE SEQUENCE kingdom.outbox_lease_number;
SELECT setval('kingdom.outbox_lease_number', last_value, is_called) FROM kingdom.outbox_lease_token_seq;
ALTER TABLE kingdom.outbox_lease ALTER COLUMN token DROP IDENTITY;
ALTER TABLE kingdom.outbox_lease ALTER COLUMN token
  SET DEFAULT (nextval('kingdom.outbox_lease_number') << 20) + floor(random() * 1048576)::bigint;
ALTER SEQUENCE kingdom.outbox_lease_number OWNED BY kingdom.outbox_lease.token;
