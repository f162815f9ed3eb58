use proptest::prelude::*;

use super::*;

fn zone(name: &str) -> TimeZone {
    TimeZone::get(name).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn next(expr: &str, base: &str, name: &str) -> String {
    let zone = zone(name);
    let next = Schedule::cron(expr).unwrap().next_after(at(base), &zone).unwrap().unwrap();
    iso(next, &zone)
}

fn parsed(text: &str) -> Result<Parsed, ScheduleError> {
    parse(text, at("2026-12-01T10:00:00Z"), &TimeZone::UTC)
}

#[test]
fn cron_follows_the_wall_clock_across_dst() {
    let rows = [
        // The missing 02:30 fires when the clock has jumped.
        ("30 2 * * *", "2026-03-07T12:00:00-05:00", "2026-03-08T03:00:00-04:00"),
        ("0 * * * *", "2026-03-08T01:30:00-05:00", "2026-03-08T03:00:00-04:00"),
        // The repeated 01:30 fires once, in the first of the two hours.
        ("30 1 * * *", "2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"),
        ("30 1 * * *", "2026-10-31T12:00:00-04:00", "2026-11-01T01:30:00-04:00"),
        ("*/15 * * * *", "2026-11-01T01:45:00-04:00", "2026-11-01T02:00:00-05:00"),
        ("0 9 * * *", "2026-11-01T12:30:00Z", "2026-11-01T09:00:00-05:00"),
    ];
    for (expr, base, expected) in rows {
        assert_eq!(next(expr, base, "America/New_York"), expected, "{expr} after {base}");
    }
}

#[test]
fn a_job_in_utc_does_not_care_for_the_hosts_dst() {
    assert_eq!(next("30 1 * * *", "2026-10-24T12:00:00Z", "UTC"), "2026-10-25T01:30:00+00:00");
}

#[test]
fn expressions_are_read_as_croniter_does() {
    assert_eq!(next("0 0 13 * 5", "2026-12-01T00:00:00Z", "UTC"), "2026-12-04T00:00:00+00:00", "day or weekday");
    assert_eq!(next("0 0 * * 7", "2026-12-01T00:00:00Z", "UTC"), "2026-12-06T00:00:00+00:00");
    assert_eq!(next("0 0 1 JAN MON", "2026-12-01T00:00:00Z", "UTC"), "2027-01-01T00:00:00+00:00");
    assert_eq!(next("* * * * * 30", "2026-12-01T00:00:00Z", "UTC"), "2026-12-01T00:00:30+00:00", "seconds last");
    for bad in ["", "* * * *", "@daily", "60 * * * *", "? * * * *", "* * * * * * *", "a b c d e"] {
        assert!(Schedule::cron(bad).is_err(), "{bad}");
    }
    let never = Schedule::cron("0 0 31 2 *").unwrap().next_after(at("2026-12-01T00:00:00Z"), &TimeZone::UTC);
    assert!(never.unwrap_err().to_string().contains("never matches"));
}

#[test]
fn an_interval_is_elapsed_time() {
    let schedule = Schedule::interval(120).unwrap();
    let next = schedule.next_after(at("2026-11-01T00:30:00-04:00"), &zone("America/New_York")).unwrap().unwrap();
    assert_eq!(iso(next, &zone("America/New_York")), "2026-11-01T01:30:00-05:00");
    assert_eq!(Schedule::interval(0), Err(ScheduleError::Minutes(0)));
}

#[test]
fn every_form_of_the_grammar_is_read() {
    for (text, minutes) in
        [("30m", 30), ("2h", 120), ("1d", 1440), ("hour", 60), ("every 30m", 30), ("every 2 hours", 120)]
    {
        let parsed = parsed(text).unwrap();
        assert_eq!(parsed.schedule, Schedule::Interval { minutes }, "{text}");
        assert_eq!(parsed.display, format!("every {minutes}m"));
    }
    for (text, expr) in [
        ("every monday 9am", "0 9 * * 1"),
        ("weekdays at 9:30", "30 9 * * 1-5"),
        ("monday, wednesday at noon", "0 12 * * 1,3"),
        ("every day 9", "0 9 * * *"),
        ("daily at midnight", "0 0 * * *"),
        ("Fri and Sat at 9:05pm", "5 21 * * 5,6"),
        ("0 9 * * 1-5", "0 9 * * 1-5"),
    ] {
        let parsed = parsed(text).unwrap();
        assert_eq!(parsed.schedule, Schedule::cron(expr).unwrap(), "{text}");
        assert_eq!(parsed.display, text);
    }
    let once = parsed("in 30m").unwrap();
    assert_eq!(once.schedule, Schedule::Once { run_at: at("2026-12-01T10:30:00Z") });
    let dated = parsed("2027-02-03T14:00").unwrap();
    assert_eq!(dated.schedule, Schedule::Once { run_at: at("2027-02-03T14:00:00Z") });
    assert_eq!(dated.display, "once at 2027-02-03 14:00");
    assert!(parsed("2027-02-03").is_ok() && parsed("2027-02-03 14:00").is_ok() && parsed("20270203T140000").is_ok());
    for bad in ["", "90s", "1w", "1h30m", "@daily", "9am", "at 9am", "monday", "0m", "soon", "every", "13pm daily"] {
        assert!(parsed(bad).is_err(), "{bad}");
    }
    assert!(parsed("90s").unwrap_err().to_string().contains("30m, 2h, 1d"));
}

#[test]
fn times_are_written_as_the_model_writes_them() {
    let text = "2026-12-01T03:43:56.102969+00:00";
    assert_eq!(iso(parse_iso(text, &TimeZone::UTC).unwrap(), &TimeZone::UTC), text);
    assert_eq!(iso(at("2026-12-01T00:00:00Z"), &zone("America/New_York")), "2026-11-30T19:00:00-05:00");
    assert_eq!(parse_iso("2026-12-01 09:00", &zone("America/New_York")).unwrap(), at("2026-12-01T14:00:00Z"));
    assert!(parse_iso("tomorrow", &TimeZone::UTC).is_err());
}

#[test]
fn grace_is_half_a_period_within_bounds() {
    let due = at("2026-12-01T00:00:00Z");
    let grace = |schedule: Schedule| schedule.grace(due, &TimeZone::UTC).as_secs();
    assert_eq!(grace(Schedule::interval(1).unwrap()), 120);
    assert_eq!(grace(Schedule::interval(10).unwrap()), 300);
    assert_eq!(grace(Schedule::cron("0 0 * * *").unwrap()), 7200);
    assert_eq!(grace(Schedule::Once { run_at: due }), 120);
}

proptest! {
    #[test]
    fn the_next_time_is_always_later(
        minute in 0_u8..60, hour in 0_u8..24, weekday in 0_u8..8,
        base in 1_600_000_000_i64..2_000_000_000,
        name in prop::sample::select(vec!["UTC", "America/New_York", "Europe/London", "Australia/Lord_Howe", "Asia/Kolkata"]),
    ) {
        let (zone, base) = (zone(name), Timestamp::from_second(base).unwrap());
        for expr in [format!("{minute} {hour} * * *"), format!("{minute} * * * *"), format!("*/7 {hour} * * {weekday}")] {
            let schedule = Schedule::cron(&expr).unwrap();
            let next = schedule.next_after(base, &zone).unwrap().unwrap();
            prop_assert!(next > base);
            prop_assert!(schedule.names(next, &zone), "{expr} does not name its own {next}");
            let wall = zone.to_datetime(next);
            let in_gap = zone.to_datetime(next - jiff::SignedDuration::from_secs(1)).minute() != (wall.minute() + 59) % 60;
            prop_assert!(wall.second() == 0 && (in_gap || expr.starts_with("*/") || wall.minute() == minute as i8));
        }
    }

    #[test]
    fn an_interval_is_exact(minutes in 1_u64..1_000_000, base in 0_i64..2_000_000_000) {
        let base = Timestamp::from_second(base).unwrap();
        let next = Schedule::interval(minutes).unwrap().next_after(base, &TimeZone::UTC).unwrap().unwrap();
        prop_assert_eq!(next.duration_since(base).as_secs(), minutes as i64 * 60);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}") {
        let _ = parsed(&text);
        let _ = Expression::parse(&text);
    }

    #[test]
    fn times_round_trip(micros in 0_i64..4_000_000_000_000_000) {
        let instant = Timestamp::from_microsecond(micros).unwrap();
        let zone = zone("Europe/London");
        prop_assert_eq!(parse_iso(&iso(instant, &zone), &zone).unwrap(), instant);
    }
}
