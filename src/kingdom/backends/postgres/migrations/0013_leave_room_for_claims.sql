-- Leave room on each page for one more version of all its rows, which is a little longer than the first: a claim sets
-- last_attempt_at. With 50, the last rows of a full page may have no room, and then a claim writes to every index.
ALTER TABLE kingdom.outbox_event SET (fillfactor = 45);
