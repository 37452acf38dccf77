-- Whether the publisher gave the id: only such ids can come again, and are looked for among the ended events.
ALTER TABLE kingdom.outbox_event ADD COLUMN event_id_given boolean NOT NULL DEFAULT false;
ALTER TABLE kingdom.outbox_archive ADD COLUMN event_id_given boolean NOT NULL DEFAULT false;
CREATE INDEX outbox_archive_given ON kingdom.outbox_archive (event_id, stream) WHERE event_id_given;
