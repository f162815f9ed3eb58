//! Amounts of memory on the command line and on screen.

/// Reads `512M`, `2G`, `800K`, or a bare number of bytes.
///
/// # Errors
/// A sentence that lists the forms.
pub fn parse(text: &str) -> Result<u64, String> {
    let forms = || format!("{text:?} is no amount of memory: give one like 512M, 2G or a number of bytes");
    let units = [("K", 1_u64 << 10), ("M", 1 << 20), ("G", 1 << 30)];
    let scaled = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (digits, scale) = scaled.unwrap_or((text, 1));
    let number: u64 = digits.parse().map_err(|_| forms())?;
    number.checked_mul(scale).ok_or_else(forms)
}

/// An amount as a person says it: `4.1 MB`, `2.0 GB`.
pub fn shown(bytes: u64) -> String {
    let tenths = |unit: u64| (u128::from(bytes) * 10).div_ceil(u128::from(unit));
    let (tenths, unit) = if bytes < 1 << 30 { (tenths(1 << 20), "MB") } else { (tenths(1 << 30), "GB") };
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_in_every_unit() {
        for (text, bytes) in [("7", 7), ("800K", 800 << 10), ("512M", 512 << 20), ("2G", 2 << 30), ("0", 0)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "G", "-1M", "1.5G", "2T", "2GG", "99999999999999999999", "99999999999G"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn amounts_are_shown_in_the_unit_that_fits() {
        assert_eq!((shown(4 << 20), shown(1), shown(3 << 30)), ("4.0 MB".into(), "0.1 MB".into(), "3.0 GB".into()));
    }
}
