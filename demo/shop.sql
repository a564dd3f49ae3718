-- The producer's side: its business rows. A message is appended in the transaction that writes one.
CREATE SCHEMA shop;
CREATE TABLE shop.orders (
    id uuid PRIMARY KEY,
    shop text NOT NULL,
    amount numeric(10, 2) NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The consumer's side: its effect. No unique constraint on message_id: it is outbox.consume_once()
-- alone that keeps a message delivered twice from becoming two invoices.
CREATE SCHEMA billing;
CREATE TABLE billing.invoice (
    message_id uuid NOT NULL,
    event text NOT NULL,
    customer text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
