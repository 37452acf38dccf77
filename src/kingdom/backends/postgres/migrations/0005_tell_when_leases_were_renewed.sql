-- A lease that was renewed in the future proves that the clock was set back since.
ALTER TABLE kingdom.outbox_lease ADD COLUMN renewed_at timestamptz NOT NULL DEFAULT clock_timestamp();
