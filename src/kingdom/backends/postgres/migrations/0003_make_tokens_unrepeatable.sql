-- The low bits of a token are random, and its number is kept above the clock, 1,024 a second: a server that has lost
-- transactions gives no token twice, and none below a lost one. 53 bits, since a fence may travel as a number in JSON.
CREATE SEQUENCE kingdom.outbox_lease_number;
SELECT setval('kingdom.outbox_lease_number', last_value, is_called) FROM kingdom.outbox_lease_token_seq;
ALTER TABLE kingdom.outbox_lease ALTER COLUMN token DROP IDENTITY;
ALTER TABLE kingdom.outbox_lease ALTER COLUMN token
  SET DEFAULT (nextval('kingdom.outbox_lease_number') << 11) + floor(random() * 2048)::bigint;
ALTER SEQUENCE kingdom.outbox_lease_number OWNED BY kingdom.outbox_lease.token;
