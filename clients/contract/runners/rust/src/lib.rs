//! What both runners share: requests in, answers out.

use serde_json::{Value, json};
use std::io::{BufRead, Write};

/// Why a request has no rows: a SQLSTATE of the server, or `client` when the driver itself refused.
pub struct Failure {
    pub state: String,
    pub message: String,
}

impl Failure {
    pub fn client(message: impl ToString) -> Self {
        Self { state: "client".to_owned(), message: message.to_string() }
    }
}

pub type Answer = Result<Value, Failure>;

/// What the mode asks for.
pub struct Mode {
    pub typed: bool,
    pub prepare: bool,
    pub pipeline: bool,
    pub wrap: bool,
}

pub fn mode() -> Mode {
    let given: Value = std::env::args().nth(1).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let on = |name: &str| given[name] == json!(true);
    Mode { typed: given["params"] == "typed", prepare: on("prepare"), pipeline: on("pipeline"), wrap: on("wrap") }
}

pub fn url() -> String {
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    format!("postgres://{}@{}:{}/{}", of("PGUSER"), of("PGHOST"), of("PGPORT"), of("PGDATABASE"))
}

/// Statement and parameters, each a type and a value.
pub fn parts(request: &Value) -> (&str, Vec<(&str, &Value)>) {
    let parameters = request["params"].as_array().into_iter().flatten();
    let parameters = parameters.map(|p| (p[0].as_str().unwrap_or_default(), &p[1])).collect();
    (request["sql"].as_str().unwrap_or_default(), parameters)
}

pub fn nothing() -> Value {
    json!({"columns": [], "rows": []})
}

/// One request a line, one answer a line.
pub async fn serve(mut answer: impl AsyncFnMut(&Value) -> Answer) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let said = match serde_json::from_str(&line) {
            Ok(request) => answer(&request).await.unwrap_or_else(|f| json!({"error": f.state, "message": f.message})),
            Err(error) => json!({"error": "client", "message": error.to_string()}),
        };
        let mut out = std::io::stdout().lock();
        if writeln!(out, "{said}").and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}
