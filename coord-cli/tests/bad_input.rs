//! Whatever is wrong with a plan or a store is said with its place, and changes nothing.

mod common;

use common::Folder;

const GOOD: &str = "[[task]]\nid = 'a'\nrun = 'true'\n[[task]]\nid = 'b'\nrun = 'true'\ndeps = ['a']\n";

/// A bad plan, and what must be said of it.
fn bad_plans() -> Vec<(&'static str, Vec<u8>, Vec<&'static str>)> {
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        (
            "cycle",
            text(
                "[[task]]\nid='x'\nrun='true'\ndeps=['y']\n[[task]]\nid='y'\nrun='true'\ndeps=['z']\n[[task]]\nid='z'\nrun='true'\ndeps=['x']\n",
            ),
            vec!["bad.toml:4:7", "task \"x\": deps", "\"x\" -> \"y\" -> \"z\" -> \"x\""],
        ),
        (
            "own dependency",
            text("[[task]]\nid='x'\nrun='true'\ndeps=['x']\n"),
            vec!["bad.toml:4:7", "task \"x\": deps", "\"x\" -> \"x\""],
        ),
        (
            "unknown dependency",
            text("[[task]]\nid='build'\nrun='true'\n[[task]]\nid='test'\nrun='true'\ndeps=['biuld']\n"),
            vec![
                "bad.toml:7:7",
                "task \"test\": deps",
                "unknown dependency \"biuld\"",
                "did you mean \"build\"?",
            ],
        ),
        (
            "duplicate id",
            text("[[task]]\nid='a'\nrun='true'\n\n[[task]]\nid='a'\nrun='false'\n"),
            vec!["bad.toml:6:4", "task \"a\": id", "duplicate: line 2"],
        ),
        (
            "huge title",
            format!("[[task]]\nid='a'\nrun='true'\ntitle='{}'\n", "t".repeat(600 * 1_024)).into_bytes(),
            vec!["bad.toml:4:7", "task \"a\": title", "614400 bytes are too many: at most 4096"],
        ),
        (
            "not UTF-8",
            [b"[[task]]\nid='a'\nrun='echo ".as_slice(), &[0xff, 0xfe], b"'\n"].concat(),
            vec!["bad.toml:3:11", "byte 0xff at offset 26 is not UTF-8"],
        ),
        (
            "bad duration",
            text("[[task]]\nid='a'\nrun='true'\ntimeout='3 parsecs'\n"),
            vec!["bad.toml:4:9", "task \"a\": timeout", "is no duration", "write it as \"30s\""],
        ),
        (
            "duration as a number",
            text("[[task]]\nid='a'\nrun='true'\ntimeout=30\n"),
            vec!["bad.toml:4:9", "timeout"],
        ),
        (
            "unknown field",
            text("[[task]]\nid='a'\nrun='true'\ndepends=['b']\n"),
            vec![
                "bad.toml:4:1",
                "task \"a\": depends",
                "unknown field",
                "the fields are id, title, run, deps",
            ],
        ),
        ("no command", text("[[task]]\nid='a'\n"), vec!["bad.toml:1:1", "task \"a\": run", "is missing"]),
        (
            "no id",
            text("[[task]]\nrun='true'\n"),
            vec!["bad.toml:1:1", "a task without id: id", "is missing"],
        ),
        ("empty id", text("[[task]]\nid=''\nrun='true'\n"), vec!["bad.toml:2:4", "the task id is empty"]),
        ("no TOML", text("[[task]]\nid = 'a\n"), vec!["bad.toml:2:"]),
        ("no tasks", text("# nothing\n"), vec!["bad.toml:1:1", "there is no [[task]]"]),
        (
            "one bracket",
            text("[task]\nid='a'\nrun='true'\n"),
            vec!["bad.toml:1:", "[[task]], with two brackets"],
        ),
        (
            "bad name",
            text("[plan]\nname='a/b'\n[[task]]\nid='a'\nrun='true'\n"),
            vec!["bad.toml:2:6", "[plan]: name"],
        ),
        (
            "reserved name",
            text("[plan]\nname='coord.x'\n[[task]]\nid='a'\nrun='true'\n"),
            vec!["bad.toml:2:6", "coord's own"],
        ),
        (
            "too many dependencies",
            format!(
                "{}[[task]]\nid='end'\nrun='true'\ndeps=[{}]\n",
                (0..1_025).map(|n| format!("[[task]]\nid='t{n}'\nrun='true'\n")).collect::<String>(),
                (0..1_025).map(|n| format!("'t{n}',")).collect::<String>()
            )
            .into_bytes(),
            vec!["bad.toml:3079:", "task \"end\": deps", "1025 are too many: at most 1024"],
        ),
    ]
}

#[test]
fn a_bad_plan_is_refused_with_its_place_and_changes_nothing() {
    let folder = Folder::new();
    folder.write("good.toml", GOOD);
    folder.coord(["add", "good.toml"]).expect(0);
    let before = folder.coord(["ls", "--format", "json"]).expect(0).out;
    for (what, plan, parts) in bad_plans() {
        folder.write("bad.toml", plan);
        // On the board of the good plan, so that a half-added plan would be seen.
        for args in [
            &["run", "bad.toml", "--board", "good"][..],
            &["add", "bad.toml", "--board", "good"],
            &["add", "bad.toml", "--board", "good", "--replace"],
            &["check", "bad.toml"],
            &["graph", "bad.toml"],
        ] {
            let ended = folder.coord(args.iter().copied()).expect(2);
            assert!(ended.out.is_empty(), "{what}: {}", ended.out);
            for part in &parts {
                assert!(ended.err.contains(part), "{what}: no {part:?} in\n{}", ended.err);
            }
            assert!(ended.err.len() < 2_000, "{what}: {} bytes", ended.err.len());
        }
        assert_eq!(folder.coord(["ls", "--format", "json"]).expect(0).out, before, "{what}");
    }
    assert_eq!(folder.coord(["boards"]).expect(0).out, "good\n");
}

#[test]
fn a_bad_plan_makes_no_store() {
    let folder = Folder::new();
    for (what, plan, _) in bad_plans() {
        folder.write("bad.toml", plan);
        folder.coord(["run", "bad.toml"]).expect(2);
        assert!(!folder.join(".coord").exists(), "{what}");
    }
    let missing = folder.coord(["run", "nowhere.toml"]).expect(2);
    assert!(missing.err.contains("nowhere.toml cannot be read"), "{}", missing.err);
    folder.coord(["run", "."]).expect(2);
    assert!(!folder.join(".coord").exists());
}

#[test]
fn a_bad_plan_is_said_as_json_too() {
    let folder = Folder::new();
    folder.write("bad.toml", "[[task]]\nid='a'\nrun='true'\ndeps=['b']\npriority='high'\n");
    let problems = folder.coord(["run", "bad.toml", "--format", "json"]).expect(2).json();
    let problems = problems["error"]["problems"].as_array().unwrap();
    let places: Vec<_> = problems.iter().map(|p| (p["line"].as_u64(), p["field"].as_str())).collect();
    assert_eq!(places, [(Some(4), Some("task \"a\": deps")), (Some(5), Some("task \"a\": priority"))]);
    assert_eq!(problems[0]["file"], "bad.toml");
}

#[test]
fn a_store_that_cannot_be_written_is_said() {
    let folder = Folder::new();
    folder.write("good.toml", GOOD);
    folder.write("file", "not a folder");
    // Tests may run as root, whom permissions do not stop; a file in place of a folder stops everybody.
    for store in ["sqlite:file/coord.db", "sqlite:/proc/nowhere/coord.db", "sqlite:file/x/y/coord.db"] {
        for command in ["run", "add"] {
            let ended = folder.coord([command, "good.toml", "--store", store]);
            assert!(matches!(ended.code, Some(1 | 2)), "{store}: {ended:?}");
            assert!(ended.err.starts_with("error: the ") && ended.out.is_empty(), "{store}: {ended:?}");
        }
    }
    assert_eq!(folder.read("file"), "not a folder");
}

#[test]
fn a_store_file_that_is_not_ours_is_refused_and_left_alone() {
    let folder = Folder::new();
    folder.write("good.toml", GOOD);
    let foreign = "these are my diaries\n".repeat(500);
    folder.write("diary.db", &foreign);
    for args in
        [&["run", "good.toml"][..], &["add", "good.toml"], &["ls"], &["check"], &["worker"], &["show", "a"]]
    {
        let ended = folder.coord(args.iter().copied().chain(["--store", "sqlite:diary.db"]));
        assert!(matches!(ended.code, Some(1 | 2)), "{args:?}: {ended:?}");
        assert!(
            ended.err.starts_with("error: the store sqlite:diary.db cannot be used"),
            "{args:?}: {ended:?}"
        );
        assert_eq!(folder.read("diary.db"), foreign, "{args:?}");
    }
}

#[test]
fn looking_at_a_store_that_is_not_there_does_not_make_it() {
    let folder = Folder::new();
    for args in
        [&["ls"][..], &["show", "a"], &["check"], &["graph"], &["cancel", "a"], &["worker"], &["boards"]]
    {
        let ended = folder.coord(args.iter().copied()).expect(2);
        assert!(ended.err.contains("there is no store sqlite:.coord/coord.db"), "{}", ended.err);
        assert!(!folder.join(".coord").exists());
    }
}

#[test]
fn wrong_arguments_are_usage_errors() {
    let folder = Folder::new();
    folder.write("good.toml", GOOD);
    folder.write("two words.toml", GOOD);
    for (args, part) in [
        (&[][..], "Usage"),
        (&["nonsense"], "unrecognized subcommand"),
        (&["run"], "PLAN.toml"),
        (&["run", "good.toml", "--workers", "0"], "--workers"),
        (&["run", "good.toml", "--lease", "soon"], "--lease"),
        (&["run", "good.toml", "--lease", "10ms"], "1s to 24h"),
        (&["run", "good.toml", "--board", "a/b"], "--board"),
        (&["run", "good.toml", "--store", "memory:"], "several"),
        (&["run", "good.toml", "--store", "carrier-pigeon:x"], "carrier-pigeon"),
        (&["run", "two words.toml"], "has no name"),
        (&["remove"], "coord remove [OPTIONS] --all"),
        (&["release", "a", "--fence", "-1"], "a fence is a whole number"),
        (&["release", "a", "--fence", "0"], "a fence is a whole number"),
        (&["show", ""], "error: the task id is empty"),
    ] {
        let ended = folder.coord(args.iter().copied()).expect(2);
        assert!(ended.err.contains(part), "{args:?}: no {part:?} in {}", ended.err);
        assert!(!ended.err.contains("coord-core") && !ended.err.contains("invalid request"), "{}", ended.err);
        assert!(!folder.join(".coord").exists(), "{args:?}");
        if args.len() > 1 {
            // The same as one document, whatever is wrong.
            let json = folder.coord(args.iter().copied().chain(["--format", "json"])).expect(2).json();
            assert_eq!(json["error"]["exit"], 2, "{args:?}: {json}");
            assert!(json["error"]["message"].as_str().is_some_and(|text| !text.contains('\n')), "{json}");
        }
    }
    let json = folder.coord(["run", "--format=json"]).expect(2).json();
    assert!(json["error"]["message"].as_str().unwrap().contains("<PLAN.toml>"), "{json}");
    assert!(folder.coord(["run", "--", "--format=json"]).expect(2).out.is_empty());
    assert!(folder.coord(["run", "--help"]).expect(0).out.contains("--workers"));
}
