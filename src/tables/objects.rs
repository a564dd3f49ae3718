//! The relations that are opened, by name.

use crate::pg::catalog::{Extension, Object};
use crate::tables::number;
use std::ffi::CStr;

pub const EXTENSION: Extension = Extension {
    name: c"outbox",
    version: env!("CARGO_PKG_VERSION"),
    relations: NAMES,
    required: &[
        Object::Envelope,
        Object::Delivery,
        Object::Receipt,
        Object::Processed,
        Object::Topic,
        Object::Access,
        Object::Arrival,
        Object::Claimed,
    ],
    script: include_str!("../../sql/tables.sql"),
    tables: &[
        Object::Envelope,
        Object::Delivery,
        Object::Receipt,
        Object::Processed,
        Object::Topic,
        Object::Access,
    ],
    first: Object::Envelope,
    indirect: &[Object::Topic, Object::Access],
    wait_event: c"OutboxMessage",
    looked_up: number::distrust,
};

/// A constant a name, numbered in order.
macro_rules! objects {
    ($($object:ident $name:literal)*) => {
        const NAMES: &[&CStr] = &[$($name),*];
        enum Place { $($object),* }
        #[allow(non_upper_case_globals)]
        impl Object {
            $(pub const $object: Object = Object(Place::$object as usize);)*
        }
    };
}

objects! {
    Envelope c"envelope"
    EnvelopePkey c"envelope_pkey"
    EnvelopeId c"envelope_id_key"
    Delivery c"delivery"
    DeliveryPkey c"delivery_pkey"
    DeliveryReady c"delivery_ready"
    DeliveryWaiting c"delivery_waiting"
    DeliveryWaitingTopic c"delivery_waiting_topic"
    DeliveryDead c"delivery_dead"
    DeliveryParked c"delivery_parked"
    DeliveryKeyReady c"delivery_key_ready"
    DeliveryKeyLater c"delivery_key_later"
    DeliveryKeyDead c"delivery_key_dead"
    Receipt c"receipt"
    ReceiptPkey c"receipt_pkey"
    Processed c"processed"
    ProcessedPkey c"processed_pkey"
    Topic c"topic"
    TopicPkey c"topic_pkey"
    Access c"access"
    AccessNumber c"access_number"
    Arrival c"arrival"
    Claimed c"claimed"
}
