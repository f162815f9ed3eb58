//! Every record of jobs.json in one pass over the text: what matters of each is kept as it is written, the rest is skipped.
//!
//! Looking happens often and over files of many megabytes; changing is rare and goes through `document.rs`, which knows
//! where everything stands.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::document::DocumentError;

/// One record: an object's fields that matter, or something else.
#[derive(Debug, Clone)]
pub enum Record<'a> {
    /// An object.
    Object(Box<Fields<'a>>),
    /// Anything else.
    Other,
}

macro_rules! fields {
    ($($name:ident),*) => {
        /// The fields that matter, as they are written; of a key that stands twice the last counts.
        #[derive(Debug, Clone, Default)]
        pub struct Fields<'a> {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub $name: Option<&'a RawValue>,
            )*
        }

        #[allow(non_camel_case_types)]
        enum Key { $($name,)* Unknown }

        impl Key {
            fn named(name: &str) -> Self {
                match name {
                    $(stringify!($name) => Self::$name,)*
                    _ => Self::Unknown,
                }
            }
        }

        impl<'a> Fields<'a> {
            fn read<M: MapAccess<'a>>(map: &mut M) -> Result<Self, M::Error> {
                let mut fields = Self::default();
                while let Some(key) = map.next_key::<Key>()? {
                    match key {
                        $(Key::$name => fields.$name = Some(map.next_value()?),)*
                        Key::Unknown => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(fields)
            }
        }
    };
}

fields!(
    id,
    job_id,
    name,
    enabled,
    state,
    paused_at,
    schedule,
    next_run_at,
    last_run_at,
    repeat,
    no_agent,
    script,
    workdir,
    interpreter,
    prompt,
    manual_run_at,
    fire_claim,
    run_claim,
    failure_streak,
    pending_slot
);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_str<E>(self, name: &str) -> Result<Key, E> {
                Ok(Key::named(name))
            }
        }
        deserializer.deserialize_identifier(Name)
    }
}

/// Visits anything; what is no object or list is `$other`.
macro_rules! anything_else {
    ($other:expr) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any value")
        }
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($other)
        }
    };
}

impl<'de> Deserialize<'de> for Record<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Record<'de>;
            anything_else!(Record::Other);
            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Record::Other)
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                Fields::read(&mut map).map(|fields| Record::Object(Box::new(fields)))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Records with the ids that a map gives them.
type Records<'a> = Vec<(Option<String>, Record<'a>)>;

/// What `"jobs"` holds: a list, a map, or nothing.
struct Held<'a>(Records<'a>);

impl<'de> Deserialize<'de> for Held<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Held<'de>;
            anything_else!(Held(Vec::new()));
            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
                let mut records = Vec::new();
                while let Some(record) = list.next_element()? {
                    records.push((None, record));
                }
                Ok(Held(records))
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut records = Vec::new();
                while let Some((id, record)) = map.next_entry()? {
                    records.push((Some(id), record));
                }
                Ok(Held(records))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The whole file.
struct Top<'a>(Option<Records<'a>>);

impl<'de> Deserialize<'de> for Top<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Top<'de>;
            anything_else!(Top(None));
            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
                let mut records = Vec::new();
                while let Some(record) = list.next_element()? {
                    records.push((None, record));
                }
                Ok(Top(Some(records)))
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let (mut held, mut entries) = (None, Vec::new());
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "jobs" => held = Some(map.next_value::<Held<'de>>()?.0),
                        _ => entries.push((Some(key), map.next_value::<Record<'de>>()?)),
                    }
                }
                // Without "jobs", an object of objects is a map from id to job.
                let is_map = entries.iter().any(|(_, record)| matches!(record, Record::Object(_)));
                Ok(Top(Some(held.unwrap_or(if is_map { entries } else { Vec::new() }))))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// Every record of a file, with the id that a map gives it.
///
/// # Errors
/// It is not JSON, or holds no list of jobs.
pub fn records(text: &str) -> Result<Vec<(Option<String>, Record<'_>)>, DocumentError> {
    let top: Top<'_> = serde_json::from_str(text).map_err(|error| DocumentError::NotJson(error.to_string()))?;
    top.0.ok_or(DocumentError::NoJobs)
}

/// One record's text.
///
/// # Errors
/// It is not JSON; never for a part of a document.
pub fn record(text: &str) -> Result<Record<'_>, DocumentError> {
    serde_json::from_str(text).map_err(|error| DocumentError::NotJson(error.to_string()))
}
