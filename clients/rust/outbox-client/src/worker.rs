use crate::{Counts, Message, Options};
use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, Error, Row, Socket};
use uuid::Uuid;

/// Answers first, then the claim, in one statement: `claim` depends on `said`, so the answers come before it.
const ANSWER: &str = "WITH answered AS MATERIALIZED (
        SELECT token, completed FROM outbox.complete_batch($1)
        UNION ALL
        SELECT token, outbox.fail(token, error) IS NOT NULL FROM unnest($2::uuid[], $3::text[]) AS f (token, error)
        UNION ALL
        SELECT token, outbox.release(token) FROM unnest($4::uuid[]) AS r (token)),
    said AS MATERIALIZED (
        SELECT count(*)::integer AS answers, (count(*) FILTER (WHERE NOT completed))::integer AS stale FROM answered)";
const CLAIM: &str = "SELECT stale, id, token, topic, type, payload::text AS payload, key, headers, attempts
    FROM said LEFT JOIN LATERAL outbox.claim(owner => $5, topic => $6, batch_size => $7 + 0 * said.answers,
        lease_seconds => $8, wait_seconds => $9) AS message ON true";
const EXTEND: &str = "SELECT token FROM unnest($1::uuid[]) AS token WHERE outbox.extend(token, $2) IS NULL";
/// Pause between looks while a delivery runs and another could.
const LOOK: Duration = Duration::from_millis(250);
const CALM: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Works until `stop` ends: finishes what runs, releases the rest. Reconnects for as long as that takes; returns
/// an error that a new connection would not cure, and then aborts the deliveries that run.
pub async fn run_worker<T, H, F>(
    config: Config,
    tls: T,
    options: Options,
    handler: H,
    stop: impl Future<Output = ()>,
) -> Result<Counts, Error>
where
    T: MakeTlsConnect<Socket> + Clone + Send + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    H: Fn(Message) -> F,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    Worker::new(config, tls, options, handler).run(pin!(stop), false).await
}

/// Works until nothing is left to claim, then returns: for schedulers and serverless.
pub async fn drain_once<T, H, F>(
    config: Config,
    tls: T,
    options: Options,
    handler: H,
) -> Result<Counts, Error>
where
    T: MakeTlsConnect<Socket> + Clone + Send + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    H: Fn(Message) -> F,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    Worker::new(config, tls, options, handler).run(pin!(std::future::pending()), true).await
}

#[derive(Default)]
struct Answers {
    complete: Vec<Uuid>,
    fail: Vec<Uuid>,
    errors: Vec<String>,
    release: Vec<Uuid>,
}

impl Answers {
    fn is_empty(&self) -> bool {
        self.complete.is_empty() && self.fail.is_empty() && self.release.is_empty()
    }
}

struct Running {
    message: Message,
    since: Instant,
    _span: Option<Box<dyn Send>>,
}

type Lane = (String, String);

fn lane(message: &Message) -> Option<Lane> {
    Some((message.topic.clone(), message.key.clone()?))
}

struct Worker<T, H> {
    config: Config,
    tls: T,
    options: Options,
    handler: H,
    client: Option<Client>,
    queue: VecDeque<Message>,
    tasks: JoinSet<Result<(), String>>,
    running: HashMap<Id, Running>,
    answers: Answers,
    extended: Instant,
    counts: Counts,
}

impl<T, H, F> Worker<T, H>
where
    T: MakeTlsConnect<Socket> + Clone + Send + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    H: Fn(Message) -> F,
    F: Future<Output = Result<(), String>> + Send + 'static,
{
    fn new(config: Config, tls: T, options: Options, handler: H) -> Self {
        Self {
            config,
            tls,
            options,
            handler,
            client: None,
            queue: VecDeque::new(),
            tasks: JoinSet::new(),
            running: HashMap::new(),
            answers: Answers::default(),
            extended: Instant::now(),
            counts: Counts::default(),
        }
    }

    async fn run(
        mut self,
        mut stop: Pin<&mut impl Future<Output = ()>>,
        drain: bool,
    ) -> Result<Counts, Error> {
        let (mut stopping, mut calm) = (false, CALM);
        loop {
            if stopping {
                self.answers.release.extend(self.queue.drain(..).map(|message| message.token));
            }
            match self.turn(stopping, drain, stop.as_mut()).await {
                Ok(Turn::Idle) if stopping || drain => return Ok(self.counts),
                Ok(Turn::Stop) => stopping = true,
                Ok(_) => calm = CALM,
                Err(error) if is_passing(&error) => {
                    self.options.hooks.reconnecting(&error);
                    self.client = None;
                    let pause = calm.mul_f64(0.5 + fastrand::f64());
                    calm = (calm * 2).min(LONGEST);
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = stop.as_mut(), if !stopping => stopping = true,
                    }
                    // Without a database a stopped worker leaves its leases to run out.
                    if stopping && self.running.is_empty() && calm == LONGEST {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One exchange with the server, or one event while deliveries run.
    async fn turn(
        &mut self,
        stopping: bool,
        drain: bool,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Turn, Error> {
        self.collect_ended();
        self.extend().await?;
        let room = self.options.concurrency.saturating_sub(self.running.len() + self.queue.len());
        let room = if stopping { 0 } else { room };
        let mut got = 0;
        if room > 0 || !self.answers.is_empty() {
            got = self.exchange(room, 0).await?;
        }
        self.start();
        if self.running.is_empty() {
            if stopping || drain {
                return Ok(if got == 0 { Turn::Idle } else { Turn::Worked });
            }
            return self.sleep_in_server(room, stop).await;
        }
        let third = Duration::from_secs(self.options.lease_seconds.unsigned_abs().into()) / 3;
        let until = third.saturating_sub(self.extended.elapsed());
        let until = if room > got { until.min(LOOK) } else { until };
        tokio::select! {
            biased;
            ended = self.tasks.join_next_with_id() => if let Some(ended) = ended { self.end(ended) },
            () = stop.as_mut(), if !stopping => return Ok(Turn::Stop),
            () = tokio::time::sleep(until) => {}
        }
        Ok(Turn::Worked)
    }

    /// A claim that waits: no answer is in its transaction. A stop cancels it, and with it what it would lease.
    async fn sleep_in_server(
        &mut self,
        room: usize,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Turn, Error> {
        let wait = self.options.wait_seconds;
        let cancel = self.connected().await?.cancel_token();
        let tls = self.tls.clone();
        let cancelled = {
            let mut claim = pin!(self.exchange(room, wait));
            tokio::select! {
                got = claim.as_mut() => return got.map(|_| Turn::Worked),
                () = stop => {}
            }
            // Cancelled too early it would sleep on for `wait` seconds at most.
            let _ = cancel.cancel_query(tls).await;
            claim.await
        };
        if cancelled.is_err_and(|error| error.code() != Some(&SqlState::QUERY_CANCELED)) {
            self.client = None;
        }
        Ok(Turn::Stop)
    }

    async fn connected(&mut self) -> Result<&Client, Error> {
        if let Some(client) = self.client.take_if(|client| !client.is_closed()) {
            return Ok(self.client.insert(client));
        }
        let (client, connection) = self.config.connect(self.tls.clone()).await?;
        tokio::spawn(connection);
        Ok(self.client.insert(client))
    }

    /// Gives the answers and claims `room` messages in one statement; answers that failed to go stay.
    async fn exchange(&mut self, room: usize, wait: i32) -> Result<usize, Error> {
        let answers = std::mem::take(&mut self.answers);
        let rows = match self.send(&answers, room, wait).await {
            Ok(rows) => rows,
            Err(error) => {
                self.answers = answers;
                return Err(error);
            }
        };
        let stale = rows.first().map_or(Ok(0), |row| row.try_get::<_, i32>("stale"))?;
        self.counts.stale += usize::try_from(stale).unwrap_or(0);
        self.counts.delivered += answers.complete.len();
        self.counts.failed += answers.fail.len();
        self.counts.released += answers.release.len();
        if room == 0 {
            return Ok(0);
        }
        let before = self.queue.len();
        for row in &rows {
            self.queue.extend(Message::from_row(row)?);
        }
        let got = self.queue.len() - before;
        if before == 0 && self.running.is_empty() && got > 0 {
            self.extended = Instant::now();
        }
        self.options.hooks.claimed(got);
        Ok(got)
    }

    async fn send(&mut self, answers: &Answers, room: usize, wait: i32) -> Result<Vec<Row>, Error> {
        let Options { owner, topic, lease_seconds, .. } = &self.options;
        let (owner, topic, lease) = (owner.clone(), topic.clone(), *lease_seconds);
        let client = self.connected().await?;
        let Answers { complete, fail, errors, release } = answers;
        // Typed, so that no prepare costs a round trip of its own.
        let given: [(&(dyn ToSql + Sync), Type); 4] = [
            (complete, Type::UUID_ARRAY),
            (fail, Type::UUID_ARRAY),
            (errors, Type::TEXT_ARRAY),
            (release, Type::UUID_ARRAY),
        ];
        if room == 0 {
            let sql = format!("{ANSWER} SELECT stale FROM said");
            return client.query_typed(&sql, &given).await;
        }
        let room = i32::try_from(room.min(500)).unwrap_or(500);
        let sql = format!("{ANSWER} {CLAIM}");
        let asked: [(&(dyn ToSql + Sync), Type); 5] = [
            (&owner, Type::TEXT),
            (&topic, Type::TEXT),
            (&room, Type::INT4),
            (&lease, Type::INT4),
            (&wait, Type::INT4),
        ];
        client.query_typed(&sql, &[given.as_slice(), asked.as_slice()].concat()).await
    }

    /// At a third of the lease, all that is held is extended; what is stale and has not begun is dropped.
    async fn extend(&mut self) -> Result<(), Error> {
        let lease = self.options.lease_seconds;
        let held = self.running.values().map(|running| &running.message).chain(&self.queue);
        let held: Vec<_> = held.map(|message| message.token).collect();
        if held.is_empty() || self.extended.elapsed() * 3 < Duration::from_secs(lease.unsigned_abs().into()) {
            return Ok(());
        }
        let rows = self.connected().await?.query(EXTEND, &[&held, &lease]).await?;
        let stale = rows.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<Uuid>, _>>()?;
        self.queue.retain(|message| !stale.contains(&message.token));
        self.extended = Instant::now();
        Ok(())
    }

    /// Starts what may: of one key one delivery at a time, in order.
    fn start(&mut self) {
        let mut busy: HashSet<Lane> =
            self.running.values().filter_map(|running| lane(&running.message)).collect();
        for message in std::mem::take(&mut self.queue) {
            let lane = lane(&message);
            if lane.as_ref().is_some_and(|lane| busy.contains(lane)) {
                self.queue.push_back(message);
                continue;
            }
            busy.extend(lane);
            let span = self.options.hooks.starting(&message);
            let task = self.tasks.spawn((self.handler)(message.clone()));
            self.running.insert(task.id(), Running { message, since: Instant::now(), _span: span });
        }
    }

    fn collect_ended(&mut self) {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.end(ended);
        }
    }

    fn end(&mut self, ended: Result<(Id, Result<(), String>), JoinError>) {
        let (id, result) = match ended {
            Ok(ended) => ended,
            Err(panic) => (panic.id(), Err(panic.to_string())),
        };
        let Some(Running { message, since, .. }) = self.running.remove(&id) else { return };
        self.options.hooks.ended(&message, result.as_ref().err().map(String::as_str), since.elapsed());
        match result {
            Ok(()) => self.answers.complete.push(message.token),
            Err(error) => {
                self.answers.fail.push(message.token);
                self.answers.errors.push(error.replace('\0', " "));
                // The server sends the younger leases of the key back with it.
                if let Some(failed) = lane(&message) {
                    self.queue.retain(|younger| lane(younger).as_ref() != Some(&failed));
                }
            }
        }
    }
}

enum Turn {
    Worked,
    Idle,
    Stop,
}

/// The connection or the server is gone, going or no primary any more (25006), rather than a statement wrong.
fn is_passing(error: &Error) -> bool {
    error.code().is_none_or(|state| {
        state.code() == "25006"
            || ["08", "40", "53", "57"].iter().any(|class| state.code().starts_with(class))
    })
}
