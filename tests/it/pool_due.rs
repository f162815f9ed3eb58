//! Jobs of profiles that are not up: the pool sees them however their files lie and change, and one that cannot be run throws
//! nobody out again and again.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::pool::{Pool, log_of, release, with_waiting_job};
use crate::support::{Home, SOON, iso_from_now, job, locked, wait_until, write_jobs_in, write_script_in};

fn jobs(at: &str) -> String {
    json!({"jobs": [job("soon", 600, "mark.sh", at)], "updated_at": iso_from_now(0)}).to_string()
}

#[test]
fn a_job_is_seen_wherever_its_file_lies_and_however_it_comes() {
    let home = Home::new();
    fs::create_dir_all(home.file("profiles")).unwrap();
    let far = home.root().join("far");
    let (elsewhere, linked) = (far.join("profile"), home.file("profiles/linked"));
    fs::create_dir_all(linked.join("cron")).unwrap();
    for own in [home.path(), elsewhere.clone(), linked.clone()] {
        write_script_in(&own, "mark.sh", "echo >> \"$HERMES_HOME/ran\"");
    }
    write_jobs_in(&elsewhere, &jobs(&iso_from_now(0)));
    write_jobs_in(&far, &jobs(&iso_from_now(3600)));
    symlink(far.join("cron/jobs.json"), linked.join("cron/jobs.json")).unwrap();
    let pool = Pool::start(&home, &["--max", "3"]);
    wait_until("an hour's job to be known", SOON, || {
        pool.report()["due"].as_array().unwrap().iter().any(|due| due["profile"] == "linked")
    });
    // The home's own, which had no folder for it; a profile behind a link; a file behind a link, which is replaced.
    symlink(&elsewhere, home.file("profiles/elsewhere")).unwrap();
    write_jobs_in(&home.path(), &jobs(&iso_from_now(0)));
    write_jobs_in(&far, &jobs(&iso_from_now(0)));
    for own in [home.path(), elsewhere, linked] {
        wait_until(&format!("the job in {} to run", own.display()), SOON, || own.join("ran").exists());
    }
}

#[test]
fn a_job_that_cannot_be_claimed_throws_nobody_out_again_and_again() {
    let home = Home::new();
    with_waiting_job(&home, "stuck");
    let lock = locked(&home.file("profiles/stuck/cron/.tick.lock"));
    let pool = Pool::start(&home, &["--max", "1"]);
    let opened = || log_of(&home).matches("a job is due").count();
    wait_until("the pool to open it for its job", SOON, || pool.slot("stuck")["idle"] == true);
    pool.open_idle("person");
    for _ in 0..40 {
        assert_ne!(pool.slot("person")["pid"], json!(null), "{}", log_of(&home));
    }
    assert_eq!(opened(), 1);
    drop(lock);
    assert_eq!(pool.ctl(&["close", "person"]).code, 0);
    // A person brings it up, and its job runs.
    pool.open("stuck");
    wait_until("the job to run", SOON, || home.file("profiles/stuck/started").exists());
}

#[test]
fn a_child_that_was_opened_for_its_job_is_still_there_when_it_is_due() {
    let home = Home::new();
    let own = home.file("profiles/p");
    fs::create_dir_all(&own).unwrap();
    write_script_in(&own, "mark.sh", "echo >> \"$HERMES_HOME/ran\"");
    write_jobs_in(&own, &jobs(&iso_from_now(2)));
    let pool = Pool::start(&home, &["--idle-stop", "0s"]);
    wait_until("the job to run", SOON, || own.join("ran").exists());
    assert_eq!(log_of(&home).matches("a job is due").count(), 1);
    wait_until("its child to go", SOON, || pool.slot("p").is_null());
}

#[test]
fn a_stuck_job_holds_up_no_other_of_its_profile() {
    let home = Home::new();
    let own = home.file("profiles/p");
    fs::create_dir_all(own.join("runs")).unwrap();
    write_script_in(&own, "mark.sh", "echo $HERMES_CRON_JOB_ID >> \"$HERMES_HOME/ran\"");
    let stuck = locked(&own.join("runs/cron-stuck.json"));
    let both = [job("stuck", 600, "mark.sh", &iso_from_now(-5)), job("later", 600, "mark.sh", &iso_from_now(7))];
    write_jobs_in(&own, &json!({"jobs": both, "updated_at": iso_from_now(0)}).to_string());
    let pool = Pool::start(&home, &["--idle-stop", "0s"]);
    wait_until("the pool to open it for the one", SOON, || !pool.slot("p").is_null());
    wait_until("its child to go", SOON, || pool.slot("p").is_null());
    wait_until("the other to run", SOON, || own.join("ran").exists());
    assert_eq!(home.read("profiles/p/ran"), "later\n");
    drop(stuck);
}

#[test]
fn an_heir_that_is_busy_leaves_the_other_slot_to_what_is_due() {
    let home = Home::new();
    let mut first = Pool::start(&home, &["--max", "2"]);
    first.open_busy("busy");
    first.signal(nix::sys::signal::Signal::SIGKILL);
    first.wait_exit();
    let own = home.file("profiles/p");
    fs::create_dir_all(&own).unwrap();
    write_script_in(&own, "mark.sh", "echo >> \"$HERMES_HOME/ran\"");
    write_jobs_in(&own, &jobs(&iso_from_now(0)));
    let _next = Pool::start(&home, &["--max", "2"]);
    wait_until("the job to run", SOON, || own.join("ran").exists());
    release(&home, "busy");
    wait_until("the heir's job to end", SOON, || {
        home.read("profiles/busy/cron/jobs.json").contains(r#""last_status":"ok""#)
            || home.read("profiles/busy/cron/jobs.json").contains(r#""last_status": "ok""#)
    });
}
