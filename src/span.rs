//! Spans of time on the command line and on screen.

use std::time::Duration;

/// Reads `500ms`, `3s`, `2m`, `1h`, or a bare number of seconds.
///
/// # Errors
/// A sentence that lists the forms.
pub fn parse(text: &str) -> Result<Duration, String> {
    let forms = || format!("{text:?} is no span of time: give one like 500ms, 3s, 2m, 1h or a number of seconds");
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let scaled = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (digits, scale) = scaled.unwrap_or((text, 1.0));
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = digits.parse().ok().filter(|_| plain).ok_or_else(forms)?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| forms())
}

/// An age as a person says it: `12 s`, `4 min`, `3 h`, `2 d`.
pub fn shown(ms: u64) -> String {
    match ms / 1000 {
        0 => format!("{ms} ms"),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds @ 7200..=172_799 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_in_every_unit() {
        for (text, ms) in [("500ms", 500), ("3s", 3000), ("2m", 120_000), ("1h", 3_600_000), ("1.5", 1500), ("0", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "s", "-1s", "1d", "1 s", "1e9", "nan", "ms", "1ss"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ages_are_shown_in_the_unit_that_fits() {
        assert_eq!((shown(7), shown(1500), shown(240_000)), ("7 ms".into(), "1 s".into(), "4 min".into()));
    }
}
