//! Appends, appends a batch, rolls one back, and consumes one message once; prints the ids.

use outbox_client::{NewMessage, append, append_batch, consume_once};
use tokio_postgres::NoTls;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let conninfo = std::env::args().nth(1).ok_or("usage: produce CONNINFO")?;
    let (mut client, connection) = tokio_postgres::connect(&conninfo, NoTls).await?;
    tokio::spawn(connection);
    let number = r#"{"n": 1234567890123456789012345678901234567890}"#;
    let message = NewMessage {
        key: Some("k".into()),
        headers: Some(serde_json::json!({"traceparent": "00-1-2-01"})),
        available_at: Some("2020-01-01T00:00:00Z".into()),
        ..NewMessage::new("evt.a.v1", number)
    };
    let transaction = client.transaction().await?;
    let one = append(&transaction, "p", &message).await?;
    let plain = NewMessage::new("evt.b.v1", "[1e400]");
    let two = append_batch(&transaction, "p", &[message, plain.clone()]).await?;
    transaction.commit().await?;
    let transaction = client.transaction().await?;
    append(&transaction, "p", &plain).await?;
    transaction.rollback().await?;
    let transaction = client.transaction().await?;
    let first = consume_once(&transaction, "c", one).await?;
    let second = consume_once(&transaction, "c", one).await?;
    transaction.commit().await?;
    println!("{one} {} {} {first} {second}", two[0], two[1]);
    Ok(())
}
