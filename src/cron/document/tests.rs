use super::*;

fn edited(text: &str, place: usize, keys: &[(&str, &str)]) -> String {
    let document = Document::parse(text).unwrap();
    let mut changes = document.changes();
    let keys: Vec<(&str, String)> = keys.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
    changes.set(document.jobs()[place].1, &keys).unwrap();
    changes.apply()
}

#[test]
fn only_the_value_that_changes_changes() {
    let text = "{\"x\": 1e400,\n \"jobs\": [ {\"id\":\"a\", \"n\" : 1.50}, {\"id\":\"b\"} ], \"é\": \"\\u00e9\"}";
    assert_eq!(edited(text, 0, &[("n", "2")]), text.replace("1.50", "2"));
    assert_eq!(edited(text, 0, &[("n", "1.50")]), text, "the same value is no change");
}

#[test]
fn a_new_key_takes_the_layout_of_the_others() {
    let text = "[\n  {\n    \"id\": \"a\"\n  }\n]";
    assert_eq!(edited(text, 0, &[("k", "null")]), "[\n  {\n    \"id\": \"a\",\n    \"k\": null\n  }\n]");
    assert_eq!(edited("[{}]", 0, &[("k", "1")]), "[{\"k\": 1}]");
}

#[test]
fn every_shape_is_found() {
    let jobs = |text: &str| Document::parse(text).unwrap().jobs().len();
    for (text, count) in [
        ("{}", 0),
        ("{\"jobs\":null}", 0),
        ("{\"jobs\":7}", 0),
        ("{\"jobs\":[]}", 0),
        ("[{},{}]", 2),
        ("{\"a\":{},\"b\":{}}", 2),
        ("{\"jobs\":{\"a\":{}}}", 1),
        ("{\"updated_at\":\"x\"}", 0),
    ] {
        assert_eq!(jobs(text), count, "{text}");
    }
    for bad in ["", "7", "null", "\"x\"", "{", "[1,"] {
        assert!(Document::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_job_is_appended_and_removed_in_every_shape() {
    for (text, with) in [
        ("{\"jobs\": []}", "{\"jobs\": [\n    {\"id\":\"n\"}\n  ]}"),
        ("[{\"id\":\"a\"}]", "[{\"id\":\"a\"}, {\"id\":\"n\"}]"),
        ("{\"a\":{}}", "{\"a\":{}, \"n\": {\"id\":\"n\"}}"),
    ] {
        let document = Document::parse(text).unwrap();
        let mut changes = document.changes();
        document.append(&mut changes, "n", "{\"id\":\"n\"}");
        assert_eq!(changes.apply(), with);
    }
    for text in ["[{\"id\":\"a\"}, {\"id\":\"b\"}, {\"id\":\"c\"}]", "{\"a\": {}, \"b\": {}, \"c\": {}}"] {
        for place in 0..3 {
            let document = Document::parse(text).unwrap();
            let mut changes = document.changes();
            document.remove(&mut changes, place);
            let out = changes.apply();
            assert_eq!(Document::parse(&out).unwrap().jobs().len(), 2, "{out}");
        }
    }
    let document = Document::parse("{\"jobs\": [ {} ]}").unwrap();
    let mut changes = document.changes();
    document.remove(&mut changes, 0);
    assert_eq!(Document::parse(&changes.apply()).unwrap().jobs().len(), 0);
}

#[test]
fn a_byte_order_mark_and_control_characters_are_read() {
    let text = readable(b"\xef\xbb\xbf[{\"id\":\"a\x01\tb\"}]".to_vec()).unwrap();
    assert_eq!(text, "[{\"id\":\"a\\u0001\\u0009b\"}]");
    assert!(Document::parse(&text).is_ok());
    assert!(readable(b"\xff".to_vec()).is_err());
    assert_eq!(without_control_characters("[\"a\nb\"]\n"), "[\"a\\u000ab\"]\n");
}

#[test]
fn a_file_without_a_list_keeps_everything_else_when_a_job_is_appended() {
    for (text, expected) in [
        ("{}", r#"{"jobs":[{"id":"a"}]}"#),
        (r#"{"version": 2, "note": [1]}"#, r#"{"jobs":[{"id":"a"}],"version":2,"note":[1]}"#),
        (r#"{"version": 2, "jobs": null}"#, r#"{"version":2,"jobs":[{"id":"a"}]}"#),
    ] {
        let document = Document::parse(text).unwrap();
        let mut changes = document.changes();
        document.append(&mut changes, "a", r#"{"id":"a"}"#);
        let after: serde_json::Value = serde_json::from_str(&changes.apply()).unwrap();
        assert_eq!(after, serde_json::from_str::<serde_json::Value>(expected).unwrap(), "{text}");
    }
}
