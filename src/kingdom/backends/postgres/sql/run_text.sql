-- name: lock_text
-- Let one writer at a time append to a text: a writer that got no answer to its commit tries again, perhaps while its
-- first transaction is still open. The snapshot of the next statement is taken after this lock, so that statement sees
-- everything that an earlier writer has committed.
SELECT pg_advisory_xact_lock(%(lock_class)s::int, hashtext(%(run)s::text || ' ' || %(name)s::text));

-- name: append_text
-- Append pieces, unless the text is cut or already has them. Return where the text ends. No unique index can prevent a
-- second copy of a piece, because it would have to include the day of the partition.
WITH stored AS (
    SELECT stop, is_cut FROM kingdom.run_text
     WHERE run = %(run)s AND name = %(name)s ORDER BY stop DESC LIMIT 1
), added AS (
    INSERT INTO kingdom.run_text (run, name, start, stop, is_cut, content)
    SELECT %(run)s::text, %(name)s::text, piece.start, piece.stop, piece.is_cut, piece.content
      FROM unnest(%(starts)s::bigint[], %(stops)s::bigint[], %(cuts)s::boolean[], %(contents)s::bytea[])
           AS piece (start, stop, is_cut, content)
     WHERE NOT EXISTS (SELECT FROM stored WHERE stored.is_cut OR stored.stop > (%(starts)s::bigint[])[1])
    RETURNING stop
)
SELECT greatest((SELECT max(stop) FROM added), (SELECT stop FROM stored), 0) AS stop;

-- name: text_extents
-- Return where each text of a run begins and ends. The recursion jumps from name to name in the index, so the
-- cost does not grow with the number of pieces.
WITH RECURSIVE names AS (
    (SELECT name FROM kingdom.run_text WHERE run = %(run)s ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT later.name FROM kingdom.run_text later
             WHERE later.run = %(run)s AND later.name > names.name ORDER BY later.name LIMIT 1)
      FROM names WHERE names.name IS NOT NULL
)
SELECT names.name, first_piece.start, last_piece.stop, last_piece.is_cut
  FROM names,
       LATERAL (SELECT start FROM kingdom.run_text
                 WHERE run = %(run)s AND name = names.name ORDER BY stop LIMIT 1) first_piece,
       LATERAL (SELECT stop, is_cut FROM kingdom.run_text
                 WHERE run = %(run)s AND name = names.name ORDER BY stop DESC LIMIT 1) last_piece;

-- name: read_text
-- Return pieces of a text that end after a position, in order.
SELECT start, content, is_cut FROM kingdom.run_text
 WHERE run = %(run)s AND name = %(name)s AND stop > %(after)s ORDER BY stop LIMIT %(limit)s;
