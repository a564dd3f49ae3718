//! Every error of the extension and its SQLSTATE (docs/contract.md section 2). Database errors pass through with their
//! own.

use crate::rules::argument::{ARRAY_ELEMENTS, Fault, NAME_BYTES};
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;
use std::ffi::CStr;

#[derive(Debug)]
pub enum Error {
    /// A bad argument.
    Argument(Fault),
    /// What is wrong with an element (from 1) of `append_batch`'s array.
    Element(usize, Box<Error>),
    /// The library and the installed extension do not match; holds the installed version, if any.
    Version(Option<String>),
    /// The sequence of message numbers was altered.
    Sequence,
    /// This number is stored, and no sequence value is above it.
    Numbers(i64),
    /// Something is not as the extension made it.
    Shape(Difference),
    /// A set-returning function was called where no set can be taken.
    NoSet,
    /// The current user has no right to this topic, or to all topics.
    Denied(&'static str, Option<String>),
    NoRole(String),
    /// A function that writes was called where nothing may be written; true: during recovery.
    ReadOnly(&'static CStr, bool),
    /// Text that is no uuid, and not even ASCII.
    MalformedUuid,
}

/// What is different about a table, a type or a result, and how to undo it.
#[derive(Debug)]
pub struct Difference {
    pub object: String,
    pub what: String,
    pub cure: String,
}

impl Error {
    /// Ends the statement with the error, from where none can be returned.
    pub fn raise(self) -> ! {
        ErrorReport::from(self).report(pgrx::PgLogLevel::ERROR);
        unreachable!("an error does not return")
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Error::Argument(fault)
    }
}

impl From<Error> for ErrorReport {
    fn from(error: Error) -> Self {
        let Report { code, message, detail, hint } = Report::of(error);
        let mut report = ErrorReport::new(code, message, "outbox");
        if let Some(detail) = detail {
            report = report.set_detail(detail);
        }
        if let Some(hint) = hint {
            report = report.set_hint(hint);
        }
        report
    }
}

/// What the user reads. Never a payload.
struct Report {
    code: Code,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl Report {
    fn new(code: Code, message: String) -> Self {
        Report { code, message, detail: None, hint: None }
    }

    fn null(message: String) -> Self {
        Report::new(Code::ERRCODE_NULL_VALUE_NOT_ALLOWED, message)
    }

    fn invalid(message: String) -> Self {
        Report::new(Code::ERRCODE_INVALID_PARAMETER_VALUE, message)
    }

    fn too_much(message: String) -> Self {
        Report::new(Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED, message)
    }

    fn detail(self, detail: String) -> Self {
        Report { detail: Some(detail), ..self }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Report { hint: Some(hint.into()), ..self }
    }

    fn of(error: Error) -> Self {
        match error {
            Error::Argument(fault) => Report::of_fault(fault),
            Error::Element(element, error) => {
                let report = Report::of(*error);
                Report { message: format!("message {element}: {}", report.message), ..report }
            }
            Error::Version(Some(version)) if version != env!("CARGO_PKG_VERSION") => Report::new(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "library version {} does not match version {version} of the installed extension \"outbox\"",
                    env!("CARGO_PKG_VERSION")
                ),
            )
            .hint("Run ALTER EXTENSION outbox UPDATE and connect again."),
            Error::Version(_) => Report::new(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "extension \"outbox\" is not completely installed".into(),
            )
            .hint("Some of its objects were dropped: restore a backup, or make them again."),
            Error::Sequence => Report::new(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "sequence \"outbox.arrival\" was altered".into(),
            )
            .hint(
                "Run ALTER SEQUENCE outbox.arrival AS bigint INCREMENT BY 1 MINVALUE 1 MAXVALUE 1125899906842623 \
                 CACHE 1 NO CYCLE.",
            ),
            Error::Numbers(stored) => Report::new(
                Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
                "message numbers are used up".into(),
            )
            .detail(format!("A row of outbox.envelope, outbox.delivery or outbox.receipt has number {stored}."))
            .hint("If that is no message, delete the row and VACUUM the table."),
            Error::Shape(Difference { object, what, cure }) => Report::new(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("{object} is not as the extension made it"),
            )
            .detail(what)
            .hint(cure),
            Error::NoSet => Report::new(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "set-valued function called in context that cannot accept a set".into(),
            ),
            Error::Denied(capability, topic) => Report::new(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                match topic {
                    Some(topic) => format!("permission denied for topic \"{topic}\""),
                    None => "permission denied for messages of any topic".into(),
                },
            )
            .hint(format!("outbox.grant_access() gives the capability {capability} for a topic or for all.")),
            Error::NoRole(name) => {
                Report::new(Code::ERRCODE_UNDEFINED_OBJECT, format!("role \"{name}\" does not exist"))
            }
            Error::ReadOnly(function, standby) => Report::new(
                Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
                format!(
                    "cannot execute {} {}",
                    function.to_string_lossy(),
                    if standby { "during recovery" } else { "in a read-only transaction" }
                ),
            )
            .hint("It writes although SELECT calls it: send it to the primary, in a transaction that may write."),
            Error::MalformedUuid => Report::new(
                Code::ERRCODE_INVALID_TEXT_REPRESENTATION,
                "invalid input syntax for type uuid".into(),
            ),
        }
    }

    fn of_fault(fault: Fault) -> Self {
        match fault {
            Fault::Null(name) => Report::null(format!("{name} must not be null")),
            Fault::NullElement(name) => Report::null(format!("{name} must not contain a null")),
            Fault::Blank(name) => Report::invalid(format!("{name} must not be empty or blank")),
            Fault::Control(name) => Report::invalid(format!("{name} must not contain control characters")),
            Fault::TooLong(name, bytes) => Report::invalid(format!("{name} is too long"))
                .detail(format!("It has {bytes} bytes; at most {NAME_BYTES} are allowed.")),
            Fault::OutOfRange(name, value, least, most) => {
                Report::invalid(format!("{name} must be between {least} and {most}, not {value}"))
            }
            Fault::NotPositive(name, value) => {
                Report::invalid(format!("{name} must be at least 1, not {value}"))
            }
            Fault::NilUuid(name) => Report::invalid(format!("{name} must not be the nil uuid")),
            Fault::NotFinite(name) => Report::invalid(format!("{name} must be a finite time")),
            Fault::Dimensions(name, dimensions) => {
                Report::invalid(format!("{name} must be an array of one dimension, not {dimensions}"))
            }
            Fault::TooManyElements(name, count) => Report::too_much(format!("{name} has too many elements"))
                .detail(format!("It has {count}; at most {ARRAY_ELEMENTS} are allowed."))
                .hint("Split it over several calls."),
            Fault::TooLarge(name, bytes, limit) => Report::too_much(format!("{name} is too large"))
                .detail(format!("It has {bytes} bytes, as jsonb or as text; at most {limit} are allowed."))
                .hint(
                    "Store large bodies elsewhere and send a reference, or raise outbox.max_payload_bytes.",
                ),
            Fault::NotAnObject(name) => Report::invalid(format!("{name} must be a JSON object")),
            Fault::NotAnArray(name) => Report::invalid(format!("{name} must be a JSON array")),
            Fault::UnknownKey(key, known) => {
                Report::invalid(format!("unknown key \"{key}\"")).hint(format!("The keys are {known}."))
            }
            Fault::UnknownCapability(name) => Report::invalid(format!("unknown capability \"{name}\"")).hint(
                "The capabilities are producer, worker, operator, monitor, producer:topic and worker:topic.",
            ),
            Fault::NotText(name) => Report::invalid(format!("{name} must be a JSON string")),
            Fault::NotWhole(name, least, most) => {
                Report::invalid(format!("{name} must be a whole number between {least} and {most}"))
            }
            Fault::NotBoolean(name) => Report::invalid(format!("{name} must be true or false")),
            Fault::NotATime(name) => {
                Report::invalid(format!("{name} must be an ISO 8601 time with an offset"))
                    .hint("Write it like 2030-01-31T08:00:00Z.")
            }
        }
    }
}
