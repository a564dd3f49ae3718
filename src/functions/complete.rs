//! `complete` and `complete_batch`: delivered.

use crate::error::Error;
use crate::pg::value::datum::UuidArray;
use crate::queue::answer;
use crate::queue::result::{Answer, AnswerRows, Caller};
use crate::rules::argument::{self, Fault};
use uuid::Uuid;

/// Delivered, if the lease is current.
pub fn complete(token: Option<Uuid>) -> Result<bool, Error> {
    let token = argument::required("token", token)?;
    Ok(answer::complete_all(&[token])?[0])
}

/// Delivered, each token for itself: rows of token and answer in input order. A repeated token is true once.
pub fn complete_batch<'fcx>(
    tokens: Option<UuidArray>,
    caller: Caller<'fcx>,
) -> Result<AnswerRows<'fcx>, Error> {
    let tokens = argument::required("tokens", tokens)?;
    argument::array("tokens", tokens.dimensions, tokens.length)?;
    let tokens: Option<Vec<Uuid>> = tokens.elements.into_iter().collect();
    let tokens = tokens.ok_or(Fault::NullElement("tokens"))?;
    let mut rows = caller.rows::<Answer>()?;
    for (token, completed) in tokens.iter().zip(answer::complete_all(&tokens)?) {
        rows.push(*token, completed);
    }
    Ok(rows)
}
