//! jobs.json as text with places in it: what we do not touch stays as it is, byte for byte.
//!
//! Seen in the wild: `{"jobs": […]}`, a bare list, a map from id to job, a byte-order mark, raw control characters in
//! strings. A change replaces exactly the values that change, in whatever layout the file has.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Text that is no list of jobs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// It is not JSON.
    #[error("it is not JSON ({0})")]
    NotJson(String),
    /// It is JSON of another kind.
    #[error("it holds no list of jobs")]
    NoJobs,
}

/// The text, made readable: no byte-order mark, and control characters in strings escaped. Whether it is JSON shows when
/// it is parsed; a file of many megabytes is not read through twice.
///
/// # Errors
/// It is no text.
pub fn readable(bytes: Vec<u8>) -> Result<String, DocumentError> {
    let mut text = String::from_utf8(bytes).map_err(|error| DocumentError::NotJson(error.to_string()))?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    // White space is fine between values; in a string it is a control character too, which shows when it is parsed.
    let raw = |byte: u8| byte < 0x20 && !matches!(byte, b'\n' | b'\r' | b'\t');
    // Without an early end the compiler looks at many bytes at a time.
    let any = text.bytes().fold(false, |found, byte| found | raw(byte));
    Ok(if any { without_control_characters(&text) } else { text })
}

/// Escapes what must not stand in a string as it is, white space included.
pub fn without_control_characters(text: &str) -> String {
    let (mut out, mut inside, mut escaped) = (String::with_capacity(text.len() + 16), false, false);
    for letter in text.chars() {
        match letter {
            control if inside && u32::from(control) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            other => out.push(other),
        }
        inside ^= letter == '"' && !escaped;
        escaped = inside && letter == '\\' && !escaped;
    }
    out
}

/// The places of the jobs in a text.
#[derive(Debug)]
pub struct Document<'a> {
    text: &'a str,
    /// Every job, with the id that its place gives it (in a map).
    jobs: Vec<(Option<String>, &'a str)>,
    /// The value that holds the jobs.
    holder: Option<&'a str>,
    updated_at: Option<&'a str>,
    /// A `jobs` that can hold none: `null`, say.
    void: Option<&'a str>,
    /// The JSON itself, without what may stand around it.
    top: &'a str,
}

impl<'a> Document<'a> {
    /// Finds the jobs.
    ///
    /// # Errors
    /// It is not JSON, or holds no jobs.
    pub fn parse(text: &'a str) -> Result<Self, DocumentError> {
        let whole: &RawValue = serde_json::from_str(text).map_err(|error| DocumentError::NotJson(error.to_string()))?;
        let top = whole.get();
        let mut document = Self { text, jobs: Vec::new(), holder: None, updated_at: None, void: None, top };
        match top.as_bytes().first() {
            Some(b'[') => document.hold(top),
            Some(b'{') => {
                let pairs = pairs(top)?;
                let find = |key: &str| pairs.iter().find(|(name, _)| name == key).map(|(_, value)| *value);
                document.updated_at = find("updated_at");
                match find("jobs") {
                    Some(jobs) if jobs.starts_with(['[', '{']) => document.hold(jobs),
                    Some(void) => {
                        document.void = Some(void);
                        Ok(())
                    }
                    None if pairs.iter().any(|(_, value)| value.starts_with('{')) => document.hold(top),
                    None => Ok(()),
                }
            }
            _ => Err(DocumentError::NoJobs),
        }?;
        Ok(document)
    }

    fn hold(&mut self, holder: &'a str) -> Result<(), DocumentError> {
        let not_json = |error: serde_json::Error| DocumentError::NotJson(error.to_string());
        self.holder = Some(holder);
        self.jobs = match holder.starts_with('[') {
            true => {
                let jobs: Vec<&RawValue> = serde_json::from_str(holder).map_err(not_json)?;
                jobs.into_iter().map(|job| (None, job.get())).collect()
            }
            false => pairs(holder)?.into_iter().map(|(id, job)| (Some(id), job)).collect(),
        };
        Ok(())
    }

    /// The whole text.
    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Every job's id by its place, and its text.
    pub fn jobs(&self) -> &[(Option<String>, &'a str)] {
        &self.jobs
    }

    /// An empty list of changes to this text.
    pub fn changes(&self) -> Changes<'a> {
        Changes { text: self.text, splices: Vec::new() }
    }

    /// The change that appends a job.
    pub fn append(&self, changes: &mut Changes<'a>, id: &str, job: &str) {
        let entry = match self.holder {
            Some(holder) if holder.starts_with('{') => format!("{}: {job}", quoted(id)),
            _ => job.to_owned(),
        };
        if let (Some(holder), Some((_, last))) = (self.holder, self.jobs.last()) {
            let gap = gap_before(self.text, holder, self.jobs.first().map_or("", |(_, first)| first));
            return changes.insert_after(last, format!(",{gap}{entry}"));
        }
        let list = format!("[\n    {entry}\n  ]");
        if let Some(place) = self.holder.or(self.void) {
            return changes.replace(place, list);
        }
        let rest = self.top.get(1..).unwrap_or("}");
        let end = if rest.trim_start() == "}" { "\n}".to_owned() } else { format!(",{rest}") };
        changes.replace(self.top, format!("{{\n  \"jobs\": {list}{end}"));
    }

    /// The change that takes a job out, with the comma that belongs to it.
    pub fn remove(&self, changes: &mut Changes<'a>, place: usize) {
        let Some((_, job)) = self.jobs.get(place) else { return };
        let (_, end) = changes.range(job);
        let previous = place.checked_sub(1).and_then(|place| self.jobs.get(place));
        let next = self.jobs.get(place + 1);
        match (next, previous) {
            // Up to where the next begins, which in a map is its key.
            (Some((_, next)), _) => {
                let until = self.begin_of(next);
                changes.splices.push((self.begin_of(job)..until, String::new()));
            }
            (None, Some((_, previous))) => {
                changes.splices.push((changes.range(previous).1..end, String::new()));
            }
            (None, None) => {
                changes.splices.push((self.begin_of(job)..end, String::new()));
            }
        }
    }

    /// Where a job's entry begins: at its key in a map, at itself in a list.
    fn begin_of(&self, job: &str) -> usize {
        let start = offset(self.text, job);
        let is_map = self.holder.is_some_and(|holder| holder.starts_with('{'));
        if !is_map {
            return start;
        }
        // Backwards over `: ` and the quoted key.
        let before = self.text.get(..start).unwrap_or_default().trim_end().trim_end_matches(':').trim_end();
        let mut bytes = before.as_bytes().iter().enumerate().rev().skip(1);
        let quote = bytes.find(|(place, byte)| {
            **byte == b'"'
                && before.as_bytes().iter().take(*place).rev().take_while(|byte| **byte == b'\\').count() % 2 == 0
        });
        quote.map_or(start, |(place, _)| place)
    }

    /// The change that says when the file was written last.
    pub fn touch(&self, changes: &mut Changes<'a>, now: &str) {
        if let Some(updated_at) = self.updated_at {
            changes.replace(updated_at, quoted(now));
        }
    }
}

/// White space between the opening of a holder and its first entry: the layout that a new entry takes over.
fn gap_before(text: &str, holder: &str, first: &str) -> String {
    let (start, end) = (offset(text, holder) + 1, offset(text, first));
    let gap: String = text.get(start..end).unwrap_or_default().chars().take_while(|c| c.is_whitespace()).collect();
    if gap.is_empty() { " ".to_owned() } else { gap }
}

/// Changes to one text: values replaced in their places.
#[derive(Debug)]
pub struct Changes<'a> {
    text: &'a str,
    splices: Vec<(Range<usize>, String)>,
}

impl<'a> Changes<'a> {
    fn range(&self, part: &str) -> (usize, usize) {
        let start = offset(self.text, part);
        (start, start + part.len())
    }

    /// Replaces a part of the text.
    pub fn replace(&mut self, part: &str, by: String) {
        let (start, end) = self.range(part);
        self.splices.push((start..end, by));
    }

    fn insert_after(&mut self, part: &str, what: String) {
        let end = self.range(part).1;
        self.splices.push((end..end, what));
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.splices.is_empty()
    }

    /// Sets keys of a job, new ones behind the others.
    ///
    /// # Errors
    /// The job is no object.
    pub fn set(&mut self, job: &'a str, keys: &[(&str, String)]) -> Result<(), DocumentError> {
        let pairs = pairs(job)?;
        for (key, value) in keys {
            match pairs.iter().find(|(name, _)| name == key) {
                Some((_, old)) if *old == value => {}
                Some((_, old)) => self.replace(old, value.clone()),
                None => self.add(job, &pairs, key, value),
            }
        }
        Ok(())
    }

    fn add(&mut self, job: &'a str, pairs: &[(String, &'a str)], key: &str, value: &str) {
        let pair = format!("{}: {value}", quoted(key));
        match pairs.last() {
            Some((_, last)) => {
                // The white space in front of the first key is the layout of all of them.
                let after_brace = job.get(1..).unwrap_or_default();
                let gap = after_brace.find('"').and_then(|end| after_brace.get(..end)).unwrap_or_default();
                let gap = if gap.is_empty() { " " } else { gap };
                self.insert_after(last, format!(",{gap}{pair}"));
            }
            None => self.replace(job, format!("{{{pair}}}")),
        }
    }

    /// The text with everything changed.
    pub fn apply(mut self) -> String {
        // Insertions at one place keep the order in which they were asked for.
        self.splices.sort_by_key(|(range, _)| range.start);
        let mut out = String::with_capacity(self.text.len() + 1024);
        let mut at = 0;
        for (range, by) in self.splices {
            out.push_str(self.text.get(at..range.start).unwrap_or_default());
            out.push_str(&by);
            at = range.end.max(at);
        }
        out.push_str(self.text.get(at..).unwrap_or_default());
        out
    }
}

/// Where a part of a text, which must be a slice of it, begins.
fn offset(text: &str, part: &str) -> usize {
    (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize).min(text.len())
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A value laid out as it stands at the depth of a job's keys.
pub fn laid_out(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.replace('\n', "\n      ")
}

/// The keys and values of an object, in order, values as they are written.
///
/// # Errors
/// It is no object.
pub fn pairs(object: &str) -> Result<Vec<(String, &str)>, DocumentError> {
    struct Pairs<'a>(Vec<(String, &'a str)>);

    impl<'de> Deserialize<'de> for Pairs<'de> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Collect;
            impl<'de> Visitor<'de> for Collect {
                type Value = Pairs<'de>;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                    let mut pairs = Vec::new();
                    while let Some((key, value)) = map.next_entry::<String, &'de RawValue>()? {
                        pairs.push((key, value.get()));
                    }
                    Ok(Pairs(pairs))
                }
            }
            deserializer.deserialize_map(Collect)
        }
    }

    let pairs: Pairs<'_> = serde_json::from_str(object).map_err(|error| DocumentError::NotJson(error.to_string()))?;
    Ok(pairs.0)
}

#[cfg(test)]
mod tests;
