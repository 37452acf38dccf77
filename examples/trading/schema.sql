-- The tables of the order pipeline. They are in the database of the bus, so that one transaction covers both.
CREATE SCHEMA IF NOT EXISTS everbit;

-- Whether orders may be sent. The row '*' stands for all markets. Every sender locks its rows FOR SHARE, so a switch
-- that has committed is seen by every later send.
CREATE TABLE IF NOT EXISTS everbit.market (
    market text PRIMARY KEY,
    kill_switch boolean NOT NULL DEFAULT false,
    kill_switch_at timestamptz,
    suspended_since timestamptz,
    reason text NOT NULL DEFAULT ''
);
INSERT INTO everbit.market (market) VALUES ('*') ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS everbit.signal (
    id uuid PRIMARY KEY,
    strategy_key text NOT NULL,
    market text NOT NULL REFERENCES everbit.market,
    side text NOT NULL CHECK (side IN ('BUY', 'SELL')),
    -- The candle that the strategy has looked at. It gives one signal, however often the strategy runs.
    candle_at timestamptz NOT NULL,
    UNIQUE (strategy_key, market, candle_at)
);

CREATE TABLE IF NOT EXISTS everbit.order_intent (
    id uuid PRIMARY KEY,
    signal_id uuid NOT NULL UNIQUE REFERENCES everbit.signal,
    market text NOT NULL REFERENCES everbit.market,
    side text NOT NULL,
    krw numeric NOT NULL CHECK (krw > 0),
    state text NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'ACCEPTED', 'FILLED', 'REJECTED')),
    owner_id text NOT NULL,
    strategy_key text NOT NULL,
    trace_id text NOT NULL
);

CREATE TABLE IF NOT EXISTS everbit.order_attempt (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_intent_id uuid NOT NULL REFERENCES everbit.order_intent,
    attempt_no int NOT NULL,
    identifier text NOT NULL,
    market text NOT NULL,
    state text NOT NULL DEFAULT 'PREPARED'
        CHECK (state IN ('PREPARED', 'SENT', 'ACKED', 'REJECTED', 'THROTTLED', 'UNKNOWN')),
    -- How often this identifier was sent. From the second time on, an earlier sender that is stopped may still send it.
    sends int NOT NULL DEFAULT 0,
    sent_at timestamptz,
    unknown_since timestamptz,
    next_lookup_at timestamptz,
    lookups int NOT NULL DEFAULT 0,
    exchange_uuid text,
    -- Why a repeated call was refused. A lookup then shows whether an earlier call was booked.
    refusal text NOT NULL DEFAULT '',
    note text NOT NULL DEFAULT '',
    CONSTRAINT attempt_number_once UNIQUE (order_intent_id, attempt_no),
    CONSTRAINT identifier_once UNIQUE (identifier)
);
-- An intent has at most one attempt that is an order or may become one. Only after THROTTLED or REJECTED may another
-- attempt follow.
CREATE UNIQUE INDEX IF NOT EXISTS one_live_attempt ON everbit.order_attempt (order_intent_id)
    WHERE state IN ('PREPARED', 'SENT', 'UNKNOWN', 'ACKED');
CREATE INDEX IF NOT EXISTS due_lookups ON everbit.order_attempt (next_lookup_at) WHERE next_lookup_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS unknown_attempts ON everbit.order_attempt (market) WHERE state = 'UNKNOWN';

CREATE TABLE IF NOT EXISTS everbit.notification_log (
    event_id uuid NOT NULL,
    type text NOT NULL,
    state text NOT NULL DEFAULT 'SENDING' CHECK (state IN ('SENDING', 'SENT')),
    sent_at timestamptz,
    CONSTRAINT notified_once UNIQUE (event_id)
);
