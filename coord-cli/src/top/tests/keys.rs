//! What each key does.

use ratatui::style::Modifier;

use super::*;

#[test]
fn each_list_has_its_tasks_in_its_order() {
    let mut model = model(mixed());
    let mut seen = Vec::new();
    for tab in Tab::ALL {
        assert_eq!(model.tab, tab);
        seen.push(
            model.rows.iter().map(|row| model.tasks[*row].id.to_string()).collect::<Vec<_>>().join(" "),
        );
        assert_eq!(press(&mut model, KeyCode::Tab), None);
    }
    let wanted = ["build pack watch", "later lint", "test", "announce deploy", "compile", "old", "done", ""];
    assert_eq!(seen, wanted);
    assert_eq!(model.tab, Tab::Running);
    press(&mut model, KeyCode::BackTab);
    assert_eq!(model.tab, Tab::Workers);
    press(&mut model, KeyCode::Left);
    press(&mut model, KeyCode::Right);
    assert_eq!(model.tab, Tab::Workers);
    for (digit, tab) in ('1'..='8').zip(Tab::ALL) {
        key(&mut model, digit);
        assert_eq!(model.tab, tab);
    }
}

#[test]
fn a_task_is_selected_by_arrows_and_stays_selected() {
    let mut model = model(mixed());
    assert_eq!(selected(&model), Some("build"));
    press(&mut model, KeyCode::Down);
    press(&mut model, KeyCode::Down);
    press(&mut model, KeyCode::Down);
    assert_eq!(selected(&model), Some("watch"));
    press(&mut model, KeyCode::Up);
    assert_eq!(selected(&model), Some("pack"));
    press(&mut model, KeyCode::Home);
    press(&mut model, KeyCode::End);
    assert_eq!(selected(&model), Some("watch"));
    keys(&mut model, "kkkkj");
    assert_eq!(selected(&model), Some("pack"));
    // Another task is claimed, and stands before it; the selection goes with the task.
    let mut tasks = mixed();
    let mut early = claimed("early", "host:9", 1, Some(NOW + 9));
    early.touched = time(NOW - 500);
    tasks.push(early);
    list(&mut model, tasks, 1);
    assert_eq!((selected(&model), model.cursor), (Some("pack"), 2));
    // The selected row is shown as such.
    update(&mut model, Event::Resized(80, 24), Duration::from_secs(1));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| render(&model, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let reversed: Vec<u16> =
        (2..22).filter(|y| buffer[(40, *y)].modifier.contains(Modifier::REVERSED)).collect();
    assert_eq!(reversed, [5]);
}

#[test]
fn cancelling_is_asked_first() {
    let mut model = model(mixed());
    press(&mut model, KeyCode::Down);
    keys(&mut model, "c");
    assert!(wide(&mut model).contains("cancel pack, held by host:8? y/n"));
    for no in [KeyCode::Char('n'), KeyCode::Esc, KeyCode::Char('q'), KeyCode::Enter, KeyCode::Char('c')] {
        model.mode = Mode::Confirm(id("pack"));
        assert_eq!(press(&mut model, no), None);
        assert!(wide(&mut model).contains("pack was not cancelled"));
        assert_eq!(model.doing, None);
    }
    keys(&mut model, "c");
    // What is asked for stays, whatever the board does meanwhile.
    list(&mut model, vec![claimed("build", "host:7", 4, None)], 1);
    assert_eq!(key(&mut model, 'y'), Some(Action::Change(Change::Cancel, id("pack"))));
    assert!(wide(&mut model).contains("cancel pack …"));
    // One change at a time.
    keys(&mut model, "jc");
    assert!(wide(&mut model).contains("wait for the answer to cancel pack"));
    let at = model.at;
    let done = Event::Changed(Change::Cancel, id("pack"), Ok(()));
    assert_eq!(update(&mut model, done, at), Some(Action::List));
    assert!(wide(&mut model).contains("pack is cancelled"));
    let refused = Event::Changed(Change::Cancel, id("pack"), Err("the task is done".into()));
    update(&mut model, refused, at);
    assert!(wide(&mut model).contains("cancel pack: the task is done"));
    // What is over cannot be cancelled.
    list(&mut model, mixed(), 2);
    keys(&mut model, "7c");
    assert!(wide(&mut model).contains("done is done, and cannot be cancelled"));
}

#[test]
fn what_failed_or_was_cancelled_can_be_retried_and_nothing_else() {
    let mut model = model(mixed());
    keys(&mut model, "5");
    assert_eq!(key(&mut model, 'r'), Some(Action::Change(Change::Retry, id("compile"))));
    let at = model.at;
    update(&mut model, Event::Changed(Change::Retry, id("compile"), Ok(())), at);
    assert!(wide(&mut model).contains("compile is open again"));
    keys(&mut model, "6");
    assert_eq!(key(&mut model, 'r'), Some(Action::Change(Change::Retry, id("old"))));
    model.doing = None;
    for (tab, says) in
        [('1', "build is running: only what"), ('4', "retry what blocks it"), ('7', "done is done: only")]
    {
        keys(&mut model, &format!("{tab}r"));
        let shown = wide(&mut model);
        assert!(shown.contains(says), "{shown}");
    }
}

#[test]
fn a_list_that_moves_under_the_finger_changes_nothing() {
    let mut model = model(vec![failed("a"), failed("b")]);
    keys(&mut model, "5");
    assert_eq!(selected(&model), Some("a"));
    list(&mut model, vec![task("a", State::Open, &[]), failed("b")], 1);
    assert_eq!(selected(&model), Some("b"));
    assert_eq!(key(&mut model, 'r'), None);
    assert!(wide(&mut model).contains("a has left this list, and b is selected now: press r again"));
    assert_eq!(key(&mut model, 'r'), Some(Action::Change(Change::Retry, id("b"))));
}

#[test]
fn read_only_says_so_and_changes_nothing() {
    let mut model = Model::new("demo", "sqlite:x.db", true);
    list(&mut model, mixed(), 0);
    let shown = wide(&mut model);
    assert!(shown.contains("read-only  q quit") && !shown.contains("c cancel"), "{shown}");
    for tab in '1'..='8' {
        for enter in ["", "e"] {
            for one in ['c', 'r'] {
                key(&mut model, tab);
                keys(&mut model, enter);
                assert_eq!(key(&mut model, one), None);
                assert_eq!(key(&mut model, 'y'), None);
                assert_eq!(model.doing, None);
                press(&mut model, KeyCode::Esc);
            }
        }
    }
    keys(&mut model, "1c");
    assert!(wide(&mut model).contains("read-only: no key changes the board"));
    // On a screen too narrow for all keys it is still said.
    keys(&mut model, "j");
    assert!(screen(&mut model, 20, 5)[4].starts_with("read-only"));
}

#[test]
fn a_task_is_explained_in_the_order_in_which_a_claim_is_judged() {
    let mut model = model(mixed());
    let mut explained = |keys: &str| {
        for one in keys.chars() {
            key(&mut model, one);
        }
        press(&mut model, KeyCode::Enter);
        let shown = wide(&mut model);
        press(&mut model, KeyCode::Esc);
        assert_eq!(model.mode, Mode::List);
        shown
    };
    for (keys, says) in [
        (
            "1",
            "Held by host:7 for ≥30s under fence 4, until 1970-01-01T00:17:05.000000Z, in 25s, unless it is renewed.",
        ),
        ("1j", "but its lease ended 5s ago: whoever comes next takes it over."),
        ("1jj", "for ever: only `coord release` frees it."),
        ("2", "It may not be claimed before 1970-01-01T00:18:20.000000Z, in 1m 40s."),
        ("2j", "it can be claimed now."),
        ("2j", "It is the next one to be handed out"),
        ("3", "It waits for 2 of its 2 dependencies:"),
        ("3", "  pack: held by host:8"),
        ("4", "  deploy: is blocked itself"),
        ("4", "  compile: failed 30s ago: exit 3 after 1.20s"),
        ("5", "Failed 30s ago: exit 3 after 1.20s."),
        ("5", "r opens it again, unless another task has begun because of that end."),
        ("5", "1 task that it holds up directly."),
        ("7", "Done 30s ago."),
    ] {
        let shown = explained(keys);
        assert!(shown.contains(says), "{keys}: {says}\n{shown}");
    }
    // It is of the task, and follows it.
    keys(&mut model, "1e");
    list(&mut model, vec![task("lint", State::Open, &[])], 3);
    assert!(wide(&mut model).contains("It is not on the board any more."));
    assert_eq!(key(&mut model, 'q'), Some(Action::Quit));
}

#[test]
fn an_explanation_can_be_scrolled_and_acted_on() {
    let deps: Vec<String> = (0..30).map(|n| format!("dep-{n:02}")).collect();
    let deps: Vec<&str> = deps.iter().map(String::as_str).collect();
    let mut tasks: Vec<Task> = deps.iter().map(|dep| failed(dep)).collect();
    tasks.push(task("all", State::Open, &deps));
    let mut model = model(tasks);
    screen(&mut model, 40, 10);
    keys(&mut model, "4e");
    assert!(screen(&mut model, 40, 10).join("\n").contains("It waits for 30 of its 30"));
    press(&mut model, KeyCode::End);
    let end = screen(&mut model, 40, 10).join("\n");
    assert!(end.contains("… and 18 more") && end.contains("priority 0"), "{end}");
    press(&mut model, KeyCode::Down);
    assert_eq!(screen(&mut model, 40, 10).join("\n"), end);
    press(&mut model, KeyCode::PageUp);
    press(&mut model, KeyCode::Home);
    assert_eq!(model.mode, Mode::Explain { id: id("all"), scroll: 0 });
    // Nothing was done to it, but it can be cancelled from here.
    keys(&mut model, "r");
    assert!(screen(&mut model, 120, 10)[9].contains("all is blocked: only what failed or was cancelled"));
    keys(&mut model, "c");
    assert_eq!(key(&mut model, 'y'), Some(Action::Change(Change::Cancel, id("all"))));
}

#[test]
fn a_filter_shows_only_what_contains_it() {
    let mut tasks = mixed();
    tasks[1].title = "Make a Parcel".into();
    tasks[2].labels.push("night".into());
    let mut model = model(tasks);
    let listed = |model: &Model| -> Vec<String> {
        model.rows.iter().map(|row| model.tasks[*row].id.to_string()).collect()
    };
    for (text, found) in [
        ("BUI", vec!["build"]),
        ("parcel", vec!["pack"]),
        ("nigh", vec!["watch"]),
        (":7", vec!["build", "watch"]),
    ] {
        keys(&mut model, "/");
        keys(&mut model, text);
        assert!(wide(&mut model).contains(&format!("filter: {text}_")));
        assert_eq!(listed(&model), found);
        press(&mut model, KeyCode::Enter);
        assert!(wide(&mut model).contains(&format!("only what contains {text:?}")));
        press(&mut model, KeyCode::Esc);
        assert_eq!((model.filter.as_str(), model.rows.len()), ("", 3));
    }
    // While it is typed, letters are letters, and Esc brings back what was before.
    keys(&mut model, "/qcr?e");
    assert_eq!(listed(&model).len(), 0);
    assert!(wide(&mut model).contains("nothing in this list contains \"qcr?e\""));
    press(&mut model, KeyCode::Backspace);
    assert_eq!(model.filter, "qcr?");
    press(&mut model, KeyCode::Esc);
    assert_eq!((listed(&model).len(), &model.mode), (3, &Mode::List));
    // It holds over lists, and for workers by name.
    keys(&mut model, "/host:8");
    press(&mut model, KeyCode::Enter);
    keys(&mut model, "8");
    let shown = wide(&mut model);
    assert!(shown.contains("host:8") && !shown.contains("host:7"), "{shown}");
    keys(&mut model, "/0");
    assert_eq!((model.len(), model.cursor), (0, 0));
    assert!(wide(&mut model).contains("nothing in this list contains \"host:80\""));
    press(&mut model, KeyCode::Esc);
    assert_eq!((model.filter.as_str(), model.len()), ("host:8", 1));
    keys(&mut model, "/");
    for _ in 0..500 {
        key(&mut model, 'x');
    }
    assert_eq!(model.filter.chars().count(), 200);
    assert!(screen(&mut model, 20, 5)[4].ends_with("xx_"));
}

#[test]
fn help_and_the_ends() {
    let mut model = model(mixed());
    keys(&mut model, "?");
    let shown = wide(&mut model);
    assert!(shown.contains("explain: who holds it") && shown.contains("Esc back"), "{shown}");
    keys(&mut model, "?");
    assert_eq!(model.mode, Mode::List);
    assert_eq!(key(&mut model, 'q'), Some(Action::Quit));
    assert_eq!(control(&mut model, 'l'), Some(Action::Redraw));
    // Ctrl-C ends whatever is asked, and Ctrl with other letters does nothing.
    for before in ["", "/", "?", "e", "c"] {
        keys(&mut model, before);
        assert_eq!(control(&mut model, 'r'), None);
        assert_eq!(control(&mut model, 'c'), Some(Action::Interrupt));
        press(&mut model, KeyCode::Esc);
    }
    // The release of a key is no second press.
    let mut release = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
    release.kind = KeyEventKind::Release;
    assert_eq!(update(&mut model, Event::Key(release), Duration::ZERO), None);
}
