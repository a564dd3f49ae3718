//! Runner for sqlx. Mode: prepare, wrap (each statement in a transaction). A parameter has the type of the Rust value that is bound.

use chrono::{DateTime, SecondsFormat, Utc};
use outbox_contract::{Answer, Failure, Mode, mode, nothing, parts, serve, url};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgConnection, PgRow};
use sqlx::query::Query;
use sqlx::types::{Json, Uuid};
use sqlx::{Column, ConnectOptions, Connection, Executor, Postgres, Row, TypeInfo};
use std::str::FromStr;

type Bound<'q> = Query<'q, Postgres, PgArguments>;

fn bind<'q>(query: Bound<'q>, kind: &str, value: &'q Value) -> Result<Bound<'q>, Failure> {
    let text = value.as_str();
    Ok(match kind {
        "uuid" => query.bind(text.map(Uuid::parse_str).transpose().map_err(Failure::client)?),
        "uuid[]" => {
            let item = |item: &Value| match item {
                Value::Null => Ok(None),
                Value::String(text) => Uuid::parse_str(text).map(Some).map_err(Failure::client),
                _ => Err(Failure::client("an array has one dimension here")),
            };
            query.bind(value.as_array().map(|items| items.iter().map(item).collect::<Result<Vec<_>, _>>()).transpose()?)
        }
        "timestamptz" => query.bind(text.map(DateTime::parse_from_rfc3339).transpose().map_err(Failure::client)?),
        // the text as it is, so that numbers keep all their digits
        "jsonb" => query
            .bind(text.map(|t| RawValue::from_string(t.to_owned()).map(Json)).transpose().map_err(Failure::client)?),
        "integer" => query.bind(value.as_i64().map(i32::try_from).transpose().map_err(Failure::client)?),
        "boolean" => query.bind(value.as_bool()),
        _ => query.bind(text),
    })
}

fn failed(error: sqlx::Error) -> Failure {
    let state = error.as_database_error().and_then(|e| e.code().map(|code| code.into_owned()));
    Failure { state: state.unwrap_or_else(|| "client".to_owned()), message: error.to_string() }
}

fn value(row: &PgRow, at: usize) -> Result<Value, Failure> {
    match row.column(at).type_info().name() {
        "BOOL" => row.try_get::<Option<bool>, _>(at).map(|v| json!(v)),
        "INT4" => row.try_get::<Option<i32>, _>(at).map(|v| json!(v)),
        "INT8" => row.try_get::<Option<i64>, _>(at).map(|v| json!(v)),
        "UUID" => row.try_get::<Option<Uuid>, _>(at).map(|v| json!(v.map(|id| id.to_string()))),
        "TIMESTAMPTZ" => row
            .try_get::<Option<DateTime<Utc>>, _>(at)
            .map(|v| json!(v.map(|t| t.to_rfc3339_opts(SecondsFormat::Micros, true)))),
        "JSONB" => row.try_get::<Option<Json<Box<RawValue>>>, _>(at).map(|v| json!(v.map(|j| j.0.get().to_owned()))),
        "VOID" => Ok(Value::Null),
        _ => row.try_get::<Option<String>, _>(at).map(|v| json!(v)),
    }
    .map_err(failed)
}

async fn execute(connection: &mut PgConnection, mode: &Mode, request: &Value) -> Answer {
    let (sql, given) = parts(request);
    if given.is_empty() && !sql.starts_with("SELECT") {
        return connection.execute(sql).await.map(|_| nothing()).map_err(failed);
    }
    let mut query = sqlx::query(sql).persistent(mode.prepare);
    for (kind, value) in given {
        query = bind(query, kind, value)?;
    }
    let rows = query.fetch_all(connection).await.map_err(failed)?;
    let columns: Vec<&str> =
        rows.first().map(|row| row.columns().iter().map(Column::name).collect()).unwrap_or_default();
    let row = |row: &PgRow| (0..row.columns().len()).map(|at| value(row, at)).collect::<Result<Vec<_>, _>>();
    Ok(json!({"columns": columns, "rows": rows.iter().map(row).collect::<Result<Vec<_>, _>>()?}))
}

async fn answer(connection: &mut PgConnection, mode: &Mode, open: &mut bool, request: &Value) -> Answer {
    if let Some(verb) = request["do"].as_str() {
        *open = verb == "begin";
        return connection.execute(verb).await.map(|_| nothing()).map_err(failed);
    }
    let Some(batch) = request["batch"].as_array() else {
        if mode.wrap && !*open && ["SELECT", "CALL"].iter().any(|verb| parts(request).0.starts_with(verb)) {
            // a statement is two messages, and a pool in transaction mode may give each another connection
            let mut transaction = connection.begin().await.map_err(failed)?;
            let done = execute(&mut transaction, mode, request).await;
            if done.is_ok() { transaction.commit().await } else { transaction.rollback().await }.map_err(failed)?;
            return done;
        }
        return execute(connection, mode, request).await;
    };
    let mut transaction = connection.begin().await.map_err(failed)?;
    let mut results = Vec::new();
    for inner in batch {
        match execute(&mut transaction, mode, inner).await {
            Ok(result) => results.push(result),
            Err(failure) => {
                transaction.rollback().await.map_err(failed)?;
                return Err(failure);
            }
        }
    }
    transaction.commit().await.map_err(failed)?;
    Ok(json!({ "results": results }))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), sqlx::Error> {
    let mode = mode();
    let options = PgConnectOptions::from_str(&url())?;
    let options = if mode.prepare { options } else { options.statement_cache_capacity(0) };
    let mut connection = options.connect().await?;
    let mut open = false;
    serve(async |request: &Value| answer(&mut connection, &mode, &mut open, request).await).await;
    connection.close().await
}
