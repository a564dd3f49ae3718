-- Makes everything that is over look as if it had ended {seconds} seconds earlier.
UPDATE outbox.envelope SET occurred_at = occurred_at - {seconds} * interval '1 second';
UPDATE outbox.receipt SET delivered_at = delivered_at - {seconds} * interval '1 second';
UPDATE outbox.delivery SET ended_at = ended_at - {seconds} * interval '1 second' WHERE ended_at IS NOT NULL;
UPDATE outbox.processed SET processed_at = processed_at - {seconds} * interval '1 second';
