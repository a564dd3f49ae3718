//! A worker that prints each delivery. A payload `{"sleep": 0.5}` takes that long; `{"fail": true}` fails.

use outbox_client::{Message, Options, drain_once, run_worker};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::NoTls;

async fn deliver(message: Message) -> Result<(), String> {
    let payload: serde_json::Value =
        serde_json::from_str(&message.payload).map_err(|error| error.to_string())?;
    println!("start {} {} {}", payload["n"], message.key.as_deref().unwrap_or("-"), message.token);
    tokio::time::sleep(Duration::from_secs_f64(payload["sleep"].as_f64().unwrap_or(0.0))).await;
    if payload["fail"] == true {
        return Err("as told".into());
    }
    println!("end {} {} {}", payload["n"], message.key.as_deref().unwrap_or("-"), message.token);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let config = arguments.next().ok_or("usage: deliver CONNINFO [drain]")?.parse()?;
    let options = Options { topic: Some("t".into()), lease_seconds: 2, ..Options::new("rust") };
    let counts = if arguments.next().is_some() {
        drain_once(config, NoTls, options, deliver).await?
    } else {
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = async move {
            terminate.recv().await;
        };
        run_worker(config, NoTls, options, deliver, stop).await?
    };
    println!("{counts:?}");
    Ok(())
}
