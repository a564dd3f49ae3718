//! The pure modules, compiled without pgrx: that this file builds proves that they need no server.
#![allow(dead_code)]

#[path = "../src/argument.rs"]
mod argument;
#[path = "../src/backoff.rs"]
mod backoff;
#[path = "../src/board.rs"]
mod board;
#[path = "../src/rules/due_mark.rs"]
mod due_mark;
#[path = "../src/formats.rs"]
mod formats;
#[path = "../src/jsonb_text.rs"]
mod jsonb_text;
#[path = "../src/places.rs"]
mod places;
#[path = "../src/receipt.rs"]
mod receipt;
#[path = "../src/token.rs"]
mod token;
