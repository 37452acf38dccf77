-- Read the facts for the database checks, except the time of lost transactions, in one statement.
-- reset_val is the value that a new session gets.
SELECT
    current_setting('server_version_num')::int AS version,
    current_setting('server_version') AS version_text,
    quote_ident(current_user) AS role,
    quote_ident(current_database()) AS database,
    pg_encoding_to_char(encoding) AS encoding,
    pg_is_in_recovery() AS is_standby,
    (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS role_limit,
    datconnlimit AS database_limit,
    clock_timestamp() AS now,
    (
        SELECT jsonb_object_agg(name, reset_val)
        FROM pg_settings
        WHERE name = ANY (%(settings)s)
    ) AS settings,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connection_count,
    (
        SELECT count(*)
        FROM pg_stat_replication
        -- Backups and logical replication are listed here too, but they are not standbys.
        WHERE application_name IS DISTINCT FROM 'pg_basebackup'
            AND pid NOT IN (SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active)
    ) AS standby_count,
    (
        SELECT jsonb_build_object(
            'pid', pid,
            'role', usename,
            'state', state,
            'seconds', extract(epoch FROM clock_timestamp() - xact_start)
        )
        FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
        ORDER BY xact_start
        LIMIT 1
    ) AS oldest_transaction
FROM pg_database
WHERE datname = current_database()
