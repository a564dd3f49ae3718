//! Reference worker: claims messages from `outbox`, delivers them, answers for each. Copy it.
//!
//! ```text
//! PGHOST=… PGDATABASE=… cargo run --release -- --owner mailer-1 --topic orders --url http://…/
//! ```
//!
//! * `claim` waits inside the server until there is work, so an idle worker costs nothing.
//! * `deliver` is the part to replace. Here it posts the whole batch to a URL as one JSON array; the answer is
//!   an object {message id: why it was not accepted}, so {} when all is well.
//! * What was accepted is completed in one call; what was not fails with its error text and comes back later, or
//!   is dead after the last attempt.
//! * While a delivery runs, its leases are extended, so slow work is not given to somebody else.
//! * SIGTERM: finish what is being delivered, release what is not, exit 0.
//! * A lost connection is opened again. An answer that could not be given is no harm: the lease runs out and the
//!   message is delivered again, which is why a consumer needs `consume_once`.

use postgres::{Client, Config, NoTls};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// The server writes each message as JSON, so that a payload leaves as it was stored: parsing it here would round
/// long numbers. For single columns: SELECT id, token, payload, …
const CLAIM: &str = "SELECT id, token, row_to_json(message)::text
       FROM outbox.claim(owner => $1, topic => $2, batch_size => $3, lease_seconds => $4, wait_seconds => $5)
         AS message";
const COMPLETE: &str = "SELECT completed FROM outbox.complete_batch($1)";
const FAIL: &str = "SELECT outbox.fail($1, error => $2)";
const EXTEND: &str = "SELECT outbox.extend(token, $1) FROM unnest($2::uuid[]) AS token";
const RELEASE: &str = "SELECT outbox.release(token) FROM unnest($1::uuid[]) AS token";
/// Time without a database after which whoever supervises us should know.
const GIVE_UP: Duration = Duration::from_secs(60);

const USAGE: &str = "usage: outbox-worker --owner NAME --url URL [--topic TOPIC] [--batch-size N] \
                     [--lease-seconds N] [--wait-seconds N]";

struct Options {
    /// Name of this worker, for operators.
    owner: String,
    /// None: any topic.
    topic: Option<String>,
    /// Where to deliver.
    url: String,
    batch_size: i32,
    lease_seconds: i32,
    /// Also how long a stop may take.
    wait_seconds: i32,
}

struct Message {
    id: Uuid,
    token: Uuid,
    body: String,
}

/// Why messages were not accepted, by id.
type Problems = HashMap<Uuid, String>;

#[derive(Default)]
struct Counts {
    completed: usize,
    failed: usize,
    released: usize,
    stale: usize,
}

struct Worker {
    options: Options,
    stopping: Arc<AtomicBool>,
    counts: Counts,
}

impl Worker {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn run(&mut self) -> Result<(), postgres::Error> {
        let mut alive = Instant::now();
        while !self.is_stopping() {
            let session = connect().and_then(|mut client| {
                let end = self.session(&mut client);
                alive = Instant::now();
                end
            });
            let Err(error) = session else { continue };
            if !is_passing(&error) || alive.elapsed() > GIVE_UP {
                return Err(error);
            }
            eprintln!("connection lost: {}", told(&error));
            thread::sleep(Duration::from_millis(500));
        }
        Ok(())
    }

    fn session(&mut self, client: &mut Client) -> Result<(), postgres::Error> {
        while !self.is_stopping() {
            self.work(client)?;
        }
        Ok(())
    }

    fn work(&mut self, client: &mut Client) -> Result<(), postgres::Error> {
        let Options { owner, topic, batch_size, lease_seconds, wait_seconds, .. } = &self.options;
        let rows = client.query(CLAIM, &[owner, topic, batch_size, lease_seconds, wait_seconds])?;
        let messages: Vec<_> =
            rows.iter().map(|row| Message { id: row.get(0), token: row.get(1), body: row.get(2) }).collect();
        let tokens: Vec<_> = messages.iter().map(|message| message.token).collect();
        if self.is_stopping() {
            client.execute(RELEASE, &[&tokens])?;
            self.counts.released += tokens.len();
        } else if !messages.is_empty() {
            let problems = self.delivered(client, &messages, &tokens)?;
            self.answer(client, &messages, &problems)?;
        }
        Ok(())
    }

    /// Delivers in a thread of its own and extends the leases for as long as that takes.
    fn delivered(
        &self,
        client: &mut Client,
        messages: &[Message],
        tokens: &[Uuid],
    ) -> Result<Problems, postgres::Error> {
        let third = Duration::from_secs(self.options.lease_seconds.unsigned_abs().into()) / 3;
        thread::scope(|scope| {
            let (done, delivery) = mpsc::channel();
            scope.spawn(move || {
                let result = deliver(&self.options, messages).unwrap_or_else(|error| {
                    messages.iter().map(|message| (message.id, error.to_string())).collect()
                });
                done.send(result)
            });
            loop {
                match delivery.recv_timeout(third) {
                    Ok(problems) => return Ok(problems),
                    Err(_) => client.execute(EXTEND, &[&self.options.lease_seconds, &tokens])?,
                };
            }
        })
    }

    fn answer(
        &mut self,
        client: &mut Client,
        messages: &[Message],
        problems: &Problems,
    ) -> Result<(), postgres::Error> {
        let (bad, good): (Vec<_>, Vec<_>) =
            messages.iter().partition(|message| problems.contains_key(&message.id));
        let good: Vec<_> = good.iter().map(|message| message.token).collect();
        let answers = client.query(COMPLETE, &[&good])?;
        self.counts.completed += good.len();
        self.counts.stale += answers.iter().filter(|row| !row.get::<_, bool>(0)).count();
        for message in bad {
            client.execute(FAIL, &[&message.token, &problems[&message.id]])?;
            self.counts.failed += 1;
        }
        Ok(())
    }
}

fn deliver(options: &Options, messages: &[Message]) -> Result<Problems, ureq::Error> {
    let bodies: Vec<_> = messages.iter().map(|message| message.body.as_str()).collect();
    let mut response = ureq::post(&options.url)
        .config()
        .timeout_global(Some(Duration::from_secs(60)))
        .build()
        .header("content-type", "application/json")
        .header("outbox-owner", &options.owner)
        .send(format!("[{}]", bodies.join(",")))?;
    response.body_mut().read_json()
}

/// Connects as libpq would by its variables.
fn connect() -> Result<Client, postgres::Error> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = variable("PGUSER").or_else(|| variable("USER")).unwrap_or_default();
    let mut config = Config::new();
    config.host(&variable("PGHOST").unwrap_or_else(|| "localhost".into()));
    config.dbname(&variable("PGDATABASE").unwrap_or_else(|| user.clone()));
    config.user(&user);
    if let Some(port) = variable("PGPORT").and_then(|port| port.parse().ok()) {
        config.port(port);
    }
    if let Some(password) = variable("PGPASSWORD") {
        config.password(password);
    }
    config.connect(NoTls)
}

/// The connection or the server is gone or going, rather than a statement wrong.
fn is_passing(error: &postgres::Error) -> bool {
    error
        .code()
        .is_none_or(|state| ["08", "40", "53", "57"].iter().any(|class| state.code().starts_with(class)))
}

/// The error and its causes: the message of a database error is the cause of "db error".
fn told(error: &dyn Error) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn options() -> Result<Options, lexopt::Error> {
    use lexopt::prelude::*;
    let (mut owner, mut url, mut topic) = (None, None, None);
    let (mut batch_size, mut lease_seconds, mut wait_seconds) = (50, 60, 5);
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("owner") => owner = Some(arguments.value()?.string()?),
            Long("url") => url = Some(arguments.value()?.string()?),
            Long("topic") => topic = Some(arguments.value()?.string()?),
            Long("batch-size") => batch_size = arguments.value()?.parse()?,
            Long("lease-seconds") => lease_seconds = arguments.value()?.parse()?,
            Long("wait-seconds") => wait_seconds = arguments.value()?.parse()?,
            _ => return Err(argument.unexpected()),
        }
    }
    let owner = owner.ok_or("--owner is missing")?;
    let url = url.ok_or("--url is missing")?;
    Ok(Options { owner, topic, url, batch_size, lease_seconds, wait_seconds })
}

fn run() -> Result<Counts, Box<dyn Error>> {
    let options = options().map_err(|error| format!("{error}; {USAGE}"))?;
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stopping))?;
    }
    let mut worker = Worker { options, stopping, counts: Counts::default() };
    worker.run()?;
    Ok(worker.counts)
}

fn main() -> ExitCode {
    match run() {
        Ok(Counts { completed, failed, released, stale }) => {
            println!("completed {completed}, failed {failed}, released {released}, stale {stale}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", told(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
