//! Runner for tokio-postgres. Mode: prepare, pipeline. Parameters have the types that the server infers.

use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::future::try_join_all;
use outbox_contract::{Answer, Failure, Mode, mode, nothing, parts, serve, url};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::error::Error;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, NoTls, Row, Statement};
use uuid::Uuid;

/// A jsonb as its text, so that numbers keep all their digits: a version byte, then the text.
#[derive(Debug)]
struct JsonText(String);

impl ToSql for JsonText {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&[1]);
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::JSONB
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for JsonText {
    fn from_sql(_: &Type, bytes: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(std::str::from_utf8(bytes.get(1..).unwrap_or_default())?.to_owned()))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::JSONB
    }
}

type Parameter = Box<dyn ToSql + Sync>;

/// NULL of whatever type.
#[derive(Debug)]
struct Null;

impl ToSql for Null {
    fn to_sql(&self, _: &Type, _: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Ok(IsNull::Yes)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn parameter(kind: &str, value: &Value) -> Result<Parameter, Failure> {
    let text = || value.as_str().unwrap_or_default().to_owned();
    Ok(match (kind, value) {
        (_, Value::Null) => Box::new(Null),
        ("uuid", _) => Box::new(Uuid::parse_str(&text()).map_err(Failure::client)?),
        ("uuid[]", Value::Array(items)) => {
            let item = |item: &Value| match item {
                Value::Null => Ok(None),
                Value::String(text) => Uuid::parse_str(text).map(Some).map_err(Failure::client),
                _ => Err(Failure::client("an array has one dimension here")),
            };
            Box::new(items.iter().map(item).collect::<Result<Vec<_>, _>>()?)
        }
        ("timestamptz", _) => Box::new(DateTime::parse_from_rfc3339(&text()).map_err(Failure::client)?),
        ("jsonb", _) => Box::new(JsonText(text())),
        ("integer", _) => {
            Box::new(value.as_i64().and_then(|n| i32::try_from(n).ok()).ok_or_else(|| Failure::client("no int4"))?)
        }
        ("boolean", _) => Box::new(value.as_bool()),
        _ => Box::new(text()),
    })
}

fn failed(error: tokio_postgres::Error) -> Failure {
    let message =
        error.as_db_error().map_or_else(|| format!("{error} {:?}", error.source()), |e| e.message().to_owned());
    Failure { state: error.code().map_or("client", |code| code.code()).to_owned(), message }
}

fn value(row: &Row, at: usize) -> Result<Value, Failure> {
    let of = row.columns()[at].type_().clone();
    let got = if of == Type::BOOL {
        row.try_get::<_, Option<bool>>(at).map(|v| json!(v))
    } else if of == Type::INT4 {
        row.try_get::<_, Option<i32>>(at).map(|v| json!(v))
    } else if of == Type::INT8 {
        row.try_get::<_, Option<i64>>(at).map(|v| json!(v))
    } else if of == Type::UUID {
        row.try_get::<_, Option<Uuid>>(at).map(|v| json!(v.map(|id| id.to_string())))
    } else if of == Type::TIMESTAMPTZ {
        row.try_get::<_, Option<DateTime<Utc>>>(at)
            .map(|v| json!(v.map(|t| t.to_rfc3339_opts(SecondsFormat::Micros, true))))
    } else if of == Type::JSONB {
        row.try_get::<_, Option<JsonText>>(at).map(|v| json!(v.map(|j| j.0)))
    } else if of == Type::VOID {
        Ok(Value::Null)
    } else {
        row.try_get::<_, Option<String>>(at).map(|v| json!(v))
    };
    got.map_err(failed)
}

struct Runner {
    client: Client,
    mode: Mode,
    prepared: HashMap<String, Statement>,
}

impl Runner {
    async fn statement(&mut self, sql: &str) -> Result<Statement, Failure> {
        if let Some(known) = self.prepared.get(sql) {
            return Ok(known.clone());
        }
        let statement = self.client.prepare(sql).await.map_err(failed)?;
        self.prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    async fn execute(&mut self, request: &Value) -> Answer {
        let (sql, given) = parts(request);
        if given.is_empty() && !sql.starts_with("SELECT") {
            return self.client.batch_execute(sql).await.map(|()| nothing()).map_err(failed);
        }
        let owned = given.iter().map(|(kind, value)| parameter(kind, value)).collect::<Result<Vec<_>, _>>()?;
        if self.mode.prepare {
            let statement = self.statement(sql).await?;
            let parameters: Vec<&(dyn ToSql + Sync)> = owned.iter().map(|p| &**p).collect();
            let rows = self.client.query(&statement, &parameters).await.map_err(failed)?;
            return said(statement.columns().iter().map(|c| c.name()), &rows);
        }
        // one message, no named statement, types said by us: what a pool in transaction mode needs
        let types = given.iter().map(|(kind, _)| kind_type(kind));
        let parameters: Vec<(&(dyn ToSql + Sync), Type)> = owned.iter().map(|p| &**p).zip(types).collect();
        let rows = self.client.query_typed(sql, &parameters).await.map_err(failed)?;
        said(rows.first().map_or(&[][..], Row::columns).iter().map(|c| c.name()), &rows)
    }

    /// All statements prepared first, then sent in one go.
    async fn pipelined(&mut self, batch: &[Value]) -> Answer {
        let mut work = Vec::new();
        for request in batch {
            let (sql, given) = parts(request);
            let owned = given.iter().map(|(kind, value)| parameter(kind, value)).collect::<Result<Vec<_>, _>>()?;
            work.push((self.statement(sql).await?, owned));
        }
        let client = &self.client;
        let queries = work.iter().map(|(statement, owned)| async move {
            let parameters: Vec<&(dyn ToSql + Sync)> = owned.iter().map(|p| &**p).collect();
            client.query(statement, &parameters).await
        });
        let all = try_join_all(queries).await.map_err(failed)?;
        let results = work.iter().zip(&all).map(|((s, _), rows)| said(s.columns().iter().map(|c| c.name()), rows));
        Ok(json!({"results": results.collect::<Result<Vec<_>, _>>()?}))
    }

    async fn answer(&mut self, request: &Value) -> Answer {
        if let Some(verb) = request["do"].as_str() {
            return self.client.batch_execute(verb).await.map(|()| nothing()).map_err(failed);
        }
        let Some(batch) = request["batch"].as_array() else {
            return self.execute(request).await;
        };
        self.client.batch_execute("BEGIN").await.map_err(failed)?;
        let done = if self.mode.pipeline { self.pipelined(batch).await } else { self.one_by_one(batch).await };
        self.client.batch_execute(if done.is_ok() { "COMMIT" } else { "ROLLBACK" }).await.map_err(failed)?;
        done
    }

    async fn one_by_one(&mut self, batch: &[Value]) -> Answer {
        let mut results = Vec::new();
        for request in batch {
            results.push(self.execute(request).await?);
        }
        Ok(json!({ "results": results }))
    }
}

fn kind_type(kind: &str) -> Type {
    match kind {
        "uuid" => Type::UUID,
        "uuid[]" => Type::UUID_ARRAY,
        "timestamptz" => Type::TIMESTAMPTZ,
        "jsonb" => Type::JSONB,
        "integer" => Type::INT4,
        "boolean" => Type::BOOL,
        _ => Type::TEXT,
    }
}

fn said<'a>(columns: impl Iterator<Item = &'a str>, rows: &[Row]) -> Answer {
    let columns: Vec<&str> = columns.collect();
    let row = |row: &Row| (0..columns.len()).map(|at| value(row, at)).collect::<Result<Vec<_>, _>>();
    Ok(json!({"columns": columns, "rows": rows.iter().map(row).collect::<Result<Vec<_>, _>>()?}))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(&url(), NoTls).await?;
    tokio::spawn(connection);
    let mut runner = Runner { client, mode: mode(), prepared: HashMap::new() };
    serve(async |request: &Value| runner.answer(request).await).await;
    Ok(())
}
