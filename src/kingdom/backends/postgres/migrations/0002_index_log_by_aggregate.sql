-- The history of one run is read again and again; entries about nothing in particular cost nothing here.
CREATE INDEX log_about ON kingdom.log (aggregate_id, xid, seq) WHERE aggregate_id <> '';
