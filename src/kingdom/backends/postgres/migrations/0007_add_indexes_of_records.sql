-- `owner` keeps its name and becomes the first index of each kind, so that the version before this one can use the store.
ALTER TABLE kingdom.record ADD COLUMN index_2 text, ADD COLUMN index_3 text;
CREATE INDEX record_index_2 ON kingdom.record (kind, index_2, id) WHERE index_2 IS NOT NULL;
CREATE INDEX record_index_3 ON kingdom.record (kind, index_3, id) WHERE index_3 IS NOT NULL;
