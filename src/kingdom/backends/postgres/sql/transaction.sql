-- name: begin
-- Each statement must see earlier commits, whatever the default isolation level of the database or the role is.
BEGIN ISOLATION LEVEL READ COMMITTED;

-- name: limit_idle
-- Behind PgBouncer a session setting would leak into transactions of other clients, so each transaction sets the limit.
SELECT set_config('idle_in_transaction_session_timeout', %(milliseconds)s::text, true);
