//! `pause` and `resume`: claims skip a topic, and take it up again.

use crate::error::Error;
use crate::pg::value::datum::Text;
use crate::queue::topic::{changed, checked, look_again};

const PAUSE: &str = include_str!("../queries/pause.sql");
const RESUME: &str = include_str!("../queries/resume.sql");

/// Claims skip the topic from now on; leases that are out can be answered. True if it was not paused before.
pub fn pause(topic: Option<Text<'_>>) -> Result<bool, Error> {
    let topic = checked(topic)?;
    changed(PAUSE, &[topic.into()])
}

/// Its messages can be claimed again. True if it was paused.
pub fn resume(topic: Option<Text<'_>>) -> Result<bool, Error> {
    let topic = checked(topic)?;
    let resumed = changed(RESUME, &[topic.into()])?;
    if resumed {
        look_again(topic)?;
    }
    Ok(resumed)
}
