//! When a job is due: pure, with `now` and the zone passed in.
//!
//! A cron expression is matched on the wall clock of the configured zone. A time that a DST change leaves out fires at the
//! first instant that exists after it; an hour that comes twice fires in the first of the two.

use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds};
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, Zoned};

/// A one-shot that is later than this never runs.
pub const ONE_SHOT_GRACE: Duration = Duration::from_secs(120);

/// The bounds of a recurring job's grace.
const GRACE: (Duration, Duration) = (Duration::from_secs(120), Duration::from_secs(7200));

/// A century, in minutes: no interval is longer.
const MAX_MINUTES: u64 = 60 * 24 * 366 * 100;

/// When a job runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    /// So many minutes after the last run.
    Interval {
        /// At least 1.
        minutes: u64,
    },
    /// At the times that an expression names.
    Cron(Box<Expression>),
    /// Once.
    Once {
        /// When.
        run_at: Timestamp,
    },
}

/// A parsed cron expression, with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    text: String,
    cron: Cron,
}

/// Text that is no schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// None of the forms.
    #[error(
        "{0:?} is no schedule. Use one of: 30m, 2h, 1d, every 30m (recurring); in 30m or 2027-02-03T14:00 (once); \
         every monday 9am, weekdays at 9:30, daily at noon; a cron expression such as 0 9 * * 1-5"
    )]
    Unknown(String),
    /// An interval that would never end, or never come.
    #[error("an interval has 1 to {MAX_MINUTES} minutes; this one has {0}")]
    Minutes(u64),
    /// A cron expression that cannot be read, or never matches.
    #[error("the cron expression {0:?} cannot be used: {1}")]
    Expression(String, String),
    /// A time that cannot be read.
    #[error("{0:?} is no ISO 8601 time")]
    Time(String),
}

impl Expression {
    /// Reads 5 fields, or 6 with the seconds last.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn parse(text: &str) -> Result<Self, ScheduleError> {
        let bad = |why: &str| ScheduleError::Expression(text.to_owned(), why.to_owned());
        let fields: Vec<&str> = text.split_whitespace().collect();
        let allowed = |field: &&str| field.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"*,/-".contains(&byte));
        if !fields.iter().take(5).all(allowed) {
            return Err(bad("a field has only letters, digits and * , / -"));
        }
        let ordered = match fields.as_slice() {
            [_, _, _, _, _] => fields.join(" "),
            // croner has the seconds in front.
            [rest @ .., seconds] if rest.len() == 5 => format!("{seconds} {}", rest.join(" ")),
            _ => return Err(bad("it has 5 fields, or 6 with the seconds last")),
        };
        let cron = CronParser::builder().seconds(Seconds::Optional).build().parse(&ordered);
        Ok(Self { text: text.to_owned(), cron: cron.map_err(|error| bad(&error.to_string()))? })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The next match strictly after `base`.
    fn next_after(&self, base: Timestamp, zone: &TimeZone) -> Result<Timestamp, ScheduleError> {
        let never = |_| ScheduleError::Expression(self.text.clone(), "it never matches".to_owned());
        let mut wall = zone.to_datetime(base);
        // A wall time may stand for an instant that is past already (the repeated hour): then the next one is asked for.
        for _ in 0..400 {
            // The clock on the wall has no zone: UTC stands in for it.
            let found = self.cron.find_next_occurrence(&as_utc(wall), false).map_err(never)?;
            wall = found.datetime();
            let instant = first_instant(wall, zone);
            if instant > base {
                return Ok(instant);
            }
        }
        Err(ScheduleError::Expression(self.text.clone(), "it never matches".to_owned()))
    }

    /// Whether the expression names this instant. Seen from just before it, it must come next.
    fn names(&self, instant: Timestamp, zone: &TimeZone) -> bool {
        let before = instant.checked_sub(jiff::SignedDuration::from_secs(1)).unwrap_or(instant);
        self.next_after(before, zone) == Ok(instant)
    }
}

fn as_utc(wall: DateTime) -> Zoned {
    // UTC knows every civil time, so the fallback is never taken.
    wall.to_zoned(TimeZone::UTC).unwrap_or_else(|_| Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC))
}

/// The instant of a wall time: the first of two, or the end of the gap that it lies in.
fn first_instant(wall: DateTime, zone: &TimeZone) -> Timestamp {
    let ambiguous = zone.to_ambiguous_timestamp(wall);
    let gap_end = || {
        let AmbiguousOffset::Gap { before, .. } = ambiguous.offset() else { return None };
        // In the old offset the missing time lies behind the change: the change itself is what comes first.
        let late = before.to_timestamp(wall).ok()?;
        Some(zone.preceding(late).next()?.timestamp())
    };
    gap_end().or_else(|| ambiguous.compatible().ok()).unwrap_or(Timestamp::MAX)
}

impl Schedule {
    /// An interval of at least a minute.
    ///
    /// # Errors
    /// Zero, or absurdly long.
    pub fn interval(minutes: u64) -> Result<Self, ScheduleError> {
        match minutes {
            1..=MAX_MINUTES => Ok(Self::Interval { minutes }),
            other => Err(ScheduleError::Minutes(other)),
        }
    }

    /// A cron expression that matches at least once.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn cron(text: &str) -> Result<Self, ScheduleError> {
        Expression::parse(text).map(|expression| Self::Cron(Box::new(expression)))
    }

    /// Whether it comes again.
    pub fn recurs(&self) -> bool {
        !matches!(self, Self::Once { .. })
    }

    /// The next time strictly after `base`; for an interval, so many minutes of elapsed time after it.
    ///
    /// # Errors
    /// An expression that never matches.
    pub fn next_after(&self, base: Timestamp, zone: &TimeZone) -> Result<Option<Timestamp>, ScheduleError> {
        match self {
            Self::Interval { minutes } => Ok(base.checked_add(minutes_span(*minutes)).ok()),
            Self::Cron(expression) => expression.next_after(base, zone).map(Some),
            Self::Once { run_at } => Ok(Some(*run_at).filter(|run_at| *run_at > base)),
        }
    }

    /// Whether `instant` is a time that this schedule names. Intervals name any: they hang on the last run.
    pub fn names(&self, instant: Timestamp, zone: &TimeZone) -> bool {
        match self {
            Self::Cron(expression) => expression.names(instant, zone),
            Self::Interval { .. } | Self::Once { .. } => true,
        }
    }

    /// How late a run may be and still count as that run: half the period, 2 min to 2 h; for a one-shot 2 min.
    pub fn grace(&self, due: Timestamp, zone: &TimeZone) -> Duration {
        let period = match self.next_after(due, zone) {
            Ok(Some(next)) if self.recurs() => Duration::try_from(next.duration_since(due)).unwrap_or_default(),
            _ => return ONE_SHOT_GRACE,
        };
        (period / 2).clamp(GRACE.0, GRACE.1)
    }
}

fn minutes_span(minutes: u64) -> jiff::SignedDuration {
    jiff::SignedDuration::from_secs(i64::try_from(minutes.saturating_mul(60)).unwrap_or(i64::MAX))
}

/// A schedule as a person writes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// When it runs.
    pub schedule: Schedule,
    /// How it is shown.
    pub display: String,
}

/// Reads a schedule in any of the forms that `hermesctl cron add` takes.
///
/// # Errors
/// A sentence that lists the forms.
pub fn parse(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Parsed, ScheduleError> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let unknown = || ScheduleError::Unknown(text.to_owned());
    let every = lower.strip_prefix("every ").map(str::trim);
    if let Some(expr) = phrase(every.unwrap_or(&lower)) {
        return Ok(Parsed { schedule: Schedule::cron(&expr)?, display: text.to_owned() });
    }
    if let Some(span) = every {
        return recurring(duration(span).ok_or_else(unknown)?);
    }
    if text.split_whitespace().count() >= 5 {
        return Ok(Parsed { schedule: Schedule::cron(text)?, display: text.to_owned() });
    }
    let dated = text.get(..10).is_some_and(|date| date.parse::<Date>().is_ok());
    if text.contains('T') || dated {
        let run_at = parse_iso(text, zone)?;
        let shown = run_at.to_zoned(zone.clone()).strftime("once at %Y-%m-%d %H:%M").to_string();
        return Ok(Parsed { schedule: Schedule::Once { run_at }, display: shown });
    }
    if let Some(span) = lower.strip_prefix("in ") {
        let minutes = duration(span.trim()).ok_or_else(unknown)?;
        let run_at = now.checked_add(minutes_span(minutes)).map_err(|_| unknown())?;
        return Ok(Parsed { schedule: Schedule::Once { run_at }, display: format!("once in {}", span.trim()) });
    }
    recurring(duration(&lower).ok_or_else(unknown)?)
}

fn recurring(minutes: u64) -> Result<Parsed, ScheduleError> {
    Ok(Parsed { schedule: Schedule::interval(minutes)?, display: format!("every {minutes}m") })
}

/// Minutes of `30m`, `2 hours`, `day`; seconds, weeks and compounds are no durations here.
fn duration(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = if number.is_empty() { 1 } else { number.parse().ok()? };
    let minutes = match unit.trim_start() {
        "m" | "min" | "mins" | "minute" | "minutes" => 1,
        "h" | "hr" | "hrs" | "hour" | "hours" => 60,
        "d" | "day" | "days" => 60 * 24,
        _ => return None,
    };
    number.checked_mul(minutes)
}

/// `monday 9am`, `weekdays at 9:30`, `monday, wednesday and friday at noon` as a cron expression.
fn phrase(text: &str) -> Option<String> {
    let words = text.replace(',', " ");
    let mut words: Vec<&str> = words.split_whitespace().collect();
    let (hour, minute) = clock(words.pop()?)?;
    if words.last() == Some(&"at") {
        words.pop();
    }
    let days = days(&words)?;
    Some(format!("{minute} {hour} * * {days}"))
}

fn days(words: &[&str]) -> Option<String> {
    match words {
        ["day" | "daily" | "everyday"] => return Some("*".to_owned()),
        ["weekday" | "weekdays"] => return Some("1-5".to_owned()),
        ["weekend" | "weekends"] => return Some("0,6".to_owned()),
        _ => {}
    }
    let mut days = Vec::new();
    for word in words.iter().filter(|word| **word != "and") {
        let day = weekday(word)?;
        if !days.contains(&day) {
            days.push(day);
        }
    }
    let days: Vec<String> = days.iter().map(u8::to_string).collect();
    Some(days.join(",")).filter(|days| !days.is_empty())
}

fn weekday(word: &str) -> Option<u8> {
    Some(match word.strip_suffix('s').filter(|stem| stem.ends_with("day")).unwrap_or(word) {
        "sun" | "sunday" => 0,
        "mon" | "monday" => 1,
        "tue" | "tues" | "tuesday" => 2,
        "wed" | "weds" | "wednesday" => 3,
        "thu" | "thur" | "thurs" | "thursday" => 4,
        "fri" | "friday" => 5,
        "sat" | "saturday" => 6,
        _ => return None,
    })
}

/// `9am`, `9:30pm`, `14:00`, `7`, `noon`, `midnight`.
fn clock(word: &str) -> Option<(u8, u8)> {
    match word {
        "noon" | "midday" => return Some((12, 0)),
        "midnight" => return Some((0, 0)),
        _ => {}
    }
    let (time, half) = match word.strip_suffix("am").map(|time| (time, 0)) {
        Some(am) => (am.0, Some(am.1)),
        None => word.strip_suffix("pm").map_or((word, None), |time| (time, Some(12))),
    };
    let (hour, minute) = time.split_once(':').unwrap_or((time, "0"));
    let plain = |text: &str| (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if !plain(hour) || !plain(minute) {
        return None;
    }
    let (hour, minute): (u8, u8) = (hour.parse().ok()?, minute.parse().ok()?);
    let hour = match half {
        Some(half) if (1..=12).contains(&hour) => hour % 12 + half,
        Some(_) => return None,
        None => hour,
    };
    (hour < 24 && minute < 60).then_some((hour, minute))
}

/// Reads ISO 8601: with an offset or `Z`, else in `zone`; a bare date is its midnight.
///
/// # Errors
/// It is none.
pub fn parse_iso(text: &str, zone: &TimeZone) -> Result<Timestamp, ScheduleError> {
    let text = text.trim();
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(instant);
    }
    let civil = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(|date| date.at(0, 0, 0, 0)));
    civil.map(|civil| first_instant(civil, zone)).map_err(|_| ScheduleError::Time(text.to_owned()))
}

/// Writes a time as the model does: the zone's offset in digits, microseconds unless they are zero.
pub fn iso(instant: Timestamp, zone: &TimeZone) -> String {
    let zoned = instant.to_zoned(zone.clone());
    let form = if instant.subsec_microsecond() == 0 && instant.subsec_millisecond() == 0 {
        "%Y-%m-%dT%H:%M:%S%:z"
    } else {
        "%Y-%m-%dT%H:%M:%S.%6f%:z"
    };
    zoned.strftime(form).to_string()
}

#[cfg(test)]
mod tests;
