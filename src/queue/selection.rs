//! The messages of a topic that one call of an operator is about.

use crate::error::Error;
use crate::pg::value::datum::Text;
use crate::queue::topic;
use crate::rules::argument;

pub struct Selection<'a> {
    pub topic: Text<'a>,
    /// None: of any type.
    pub kind: Option<Text<'a>>,
    pub limit: i64,
    /// They are only counted.
    pub dry_run: bool,
}

impl<'a> Selection<'a> {
    pub fn checked(
        topic: Option<Text<'a>>,
        kind: Option<Text<'a>>,
        max_messages: Option<i32>,
        dry_run: Option<bool>,
    ) -> Result<Self, Error> {
        let topic = topic::checked(topic)?;
        if let Some(kind) = kind {
            argument::name("type", kind.letters())?;
        }
        let limit = max_messages.map(|limit| argument::positive("max_messages", limit)).transpose()?;
        let limit = limit.map_or(i64::MAX, i64::from);
        Ok(Selection { topic, kind, limit, dry_run: argument::required("dry_run", dry_run)? })
    }
}
