//! What is seen of crafted boards, on screens of all sizes.

use ratatui::style::Color;

use super::*;

#[test]
fn the_running_tasks_with_their_leases_and_the_workers() {
    let mut model = model(mixed());
    assert_eq!(
        screen(&mut model, 92, 17),
        [
            "coord top  demo  sqlite:x.db                                            11 tasks  … done/min",
            " running 3  ready 2  waiting 1  blocked 2  failed 1  cancelled 1  done 1  workers 2",
            "TASK    WORKER  FENCE     AGE      LEFT",
            "build   host:7      4    ≥30s       25s",
            "pack    host:8      2    ≥30s   expired",
            "watch   host:7      9    ≥30s  for ever",
            "",
            "",
            "",
            "",
            "",
            "",
            "WORKER  HOLDS   DONE  A MINUTE",
            "host:7      2      0         …",
            "host:8      1      0         …",
            "listed 0s ago in 12ms",
            "q quit  ? help  c cancel  r retry  e explain  / filter  Tab next list",
        ]
    );
}

#[test]
fn time_passes_between_two_lists() {
    let mut model = model(mixed());
    update(&mut model, Event::Tick, Duration::from_secs(20));
    let shown = wide(&mut model);
    assert!(shown.contains("≥50s        5s"), "{shown}");
    assert!(shown.contains("listed 20s ago"), "{shown}");
}

#[test]
fn what_the_other_lists_tell() {
    let mut model = model(mixed());
    let mut of = |digit| {
        key(&mut model, digit);
        wide(&mut model)
    };
    assert!(of('2').contains("in 1m 40s"));
    assert!(of('3').contains("build and 1 more"));
    let blocked = of('4');
    // What comes after something blocked is blocked by what has to be looked after.
    assert_eq!(blocked.matches("compile: failed 30s ago: exit 3 after 1.20s").count(), 2, "{blocked}");
    assert!(of('5').contains("exit 3 after 1.20s"));
    assert!(of('8').contains("host:7"));
}

#[test]
fn what_was_skipped_is_told_from_what_was_cancelled() {
    let mut tasks = mixed();
    tasks.push(task("tidy", State::Skipped, &["done"]));
    let mut model = model(tasks);
    key(&mut model, '6');
    let shown = screen(&mut model, 60, 17);
    let row = |name: &str| shown.iter().find(|line| line.starts_with(name)).cloned().unwrap_or_default();
    assert!(shown.iter().any(|line| line.starts_with("TASK") && line.contains("STATE")), "{shown:?}");
    assert!(row("old").contains("cancelled") && !row("old").contains("skipped"), "{shown:?}");
    assert!(row("tidy").contains("skipped") && !row("tidy").contains("cancelled"), "{shown:?}");
    // On the narrowest screen too.
    let narrow = screen(&mut model, 24, 17).join("\n");
    assert!(narrow.contains("skipped") && narrow.contains("cancelled"), "{narrow}");
}

#[test]
fn what_can_never_begin_is_not_told_to_wait_for_what_has_ended() {
    let mut tasks = mixed();
    let mut tidy = task("tidy", State::Open, &[]);
    tidy.deps.push(Dep::on(id("done"), Rule::Failed));
    let mut later = tidy.clone();
    (later.id, later.deps) = (id("tidy later"), vec![Dep::on(id("done"), Rule::Failed), id("build").into()]);
    tasks.extend([tidy, later]);
    let mut model = model(tasks);
    keys(&mut model, "3");
    let mut explain = |name: &str| {
        model.mode = Mode::Explain { id: id(name), scroll: 0 };
        wide(&mut model)
    };
    let shown = explain("tidy");
    assert!(shown.contains("It never begins, and is skipped by whoever looks"), "{shown}");
    assert!(!shown.contains("It waits for"), "{shown}");
    let shown = explain("tidy later");
    assert!(shown.contains("is skipped once the others have ended"), "{shown}");
    assert!(shown.contains("It waits for 1 of its 2 dependencies"), "{shown}");
}

#[test]
fn an_empty_board_and_one_that_was_not_listed_yet() {
    let mut model = Model::new("demo", "sqlite:x.db", false);
    let shown = wide(&mut model);
    assert!(shown.contains("listing the board …") && shown.contains("not listed yet"), "{shown}");
    list(&mut model, Vec::new(), 1);
    let shown = wide(&mut model);
    assert!(shown.contains("the board has no tasks") && shown.contains("0 tasks"), "{shown}");
    for code in [KeyCode::Up, KeyCode::Down, KeyCode::PageDown, KeyCode::End, KeyCode::Home] {
        assert_eq!(press(&mut model, code), None);
    }
    for one in ['c', 'r', 'e'] {
        assert_eq!(key(&mut model, one), None);
        assert_eq!((&model.mode, selected(&model)), (&Mode::List, None));
        assert!(wide(&mut model).contains("no task is selected"));
    }
}

#[test]
fn a_store_that_is_away_is_told_and_comes_back() {
    let mut model = model(mixed());
    let s = Duration::from_secs;
    update(&mut model, Event::Asking, s(3));
    update(&mut model, Event::Tick, s(9));
    assert!(wide(&mut model).contains("listed 9s ago in 12ms, no answer for 6s"));
    update(&mut model, Event::Failed("connection refused".into()), s(10));
    update(&mut model, Event::Asking, s(14));
    update(&mut model, Event::Failed("connection \u{1b}[2Jrefused".into()), s(15));
    let shown = wide(&mut model);
    assert!(
        shown.contains(r"store away for 5s; this is 15s old, trying again: connection \u{1b}[2Jrefused"),
        "{shown}"
    );
    assert!(shown.contains("build"), "what was seen last is still there");
    // Without room for a line of its own it is said instead of the keys.
    assert!(screen(&mut model, 60, 6)[5].starts_with("store away for 5s"));
    list(&mut model, mixed(), 20);
    let shown = wide(&mut model);
    assert!(!shown.contains("away") && shown.contains("listed 0s ago"), "{shown}");
}

#[test]
fn every_screen_is_drawn_at_every_size() {
    let strange = [
        "日本語のとても長い名前",
        "👩‍👩‍👧‍👦 family",
        "e\u{301}\u{301}\u{301}",
        "\u{202e}right to left",
        "a\u{1b}[31mb",
        "שלום",
        "\u{200b}",
    ];
    let long = "x".repeat(200);
    let mut tasks = mixed();
    for (at, name) in strange.iter().copied().chain([long.as_str()]).enumerate() {
        let mut claim = claimed(name, name, 1, Some(NOW + 5));
        claim.title = format!("{name}\n{name}");
        tasks.push(claim);
        let mut open =
            task(&format!("{at} {}", &name.chars().take(40).collect::<String>()), State::Open, &[name]);
        open.title = name.repeat(3);
        tasks.push(open);
    }
    let mut model = model(tasks);
    for (width, height) in
        [(0, 0), (1, 1), (1, 40), (200, 1), (2, 2), (7, 3), (20, 5), (33, 9), (80, 24), (120, 30)]
    {
        screen(&mut model, width, height);
        for tab in '1'..='8' {
            for inside in ["", "?", "e", "/", "c", "ee"] {
                key(&mut model, tab);
                for one in inside.chars() {
                    key(&mut model, one);
                }
                for move_by in [KeyCode::Down, KeyCode::PageDown, KeyCode::End, KeyCode::Up] {
                    let lines = screen(&mut model, width, height);
                    assert_eq!(lines.len(), usize::from(height));
                    for line in &lines {
                        assert!(
                            !line.chars().any(|c| c.is_control() || c == '\u{202e}' || c == '\u{200b}'),
                            "{line:?}"
                        );
                    }
                    if inside != "c" {
                        press(&mut model, move_by);
                    }
                }
                press(&mut model, KeyCode::Esc);
                press(&mut model, KeyCode::Esc);
            }
        }
    }
}

#[test]
fn a_small_screen_shows_what_matters() {
    let mut model = model(mixed());
    let shown = screen(&mut model, 20, 5);
    assert_eq!(
        shown,
        [
            "coord top  demo  sq…",
            " running 3  ready 2",
            "TASK       LEFT",
            "build       25s",
            "q quit  ? help"
        ]
    );
    keys(&mut model, "7");
    assert!(screen(&mut model, 20, 5)[1].starts_with(" done 1"), "the shown list is among the names");
    keys(&mut model, "1c");
    let asked = screen(&mut model, 20, 5);
    assert_eq!(asked[4], "cancel build? y/n");
}

#[test]
fn wide_characters_keep_the_columns() {
    let mut model = model(vec![
        claimed("日本語", "w", 1, Some(NOW + 1)),
        claimed("plain", "w", 2, Some(NOW + 2)),
        claimed("a-name-that-is-much-longer-than-forty-characters-are", "w", 3, Some(NOW + 3)),
    ]);
    let shown = screen(&mut model, 100, 10);
    let rows: Vec<&String> = shown.iter().skip(3).take(3).collect();
    let end = |line: &str| crate::output::width(line);
    assert!(rows.iter().all(|row| end(row) == end(rows[0])), "{rows:?}");
    assert!(rows[0].starts_with("a-name-that-is-much-longer-than-forty-c…  w"), "{rows:?}");
}

#[test]
fn colors_are_left_out_where_they_are_not_wanted() {
    let mut model = model(mixed());
    for colors in [true, false] {
        model.colors = colors;
        let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
        terminal.draw(|frame| render(&model, frame.area(), frame.buffer_mut())).unwrap();
        let cells = &terminal.backend().buffer().content;
        assert_eq!(cells.iter().any(|cell| cell.fg != Color::Reset), colors);
    }
}

#[test]
fn the_largest_board_and_its_throughput() {
    let board = |done: usize| -> Vec<Task> {
        (0..9_999)
            .map(|n| {
                let name = format!("task-{n:04}");
                let mut one = match n {
                    n if n < done => task(&name, State::Done, &[]),
                    n if n < done + 4 => claimed(&name, &format!("host:{}", n % 4), 1, Some(NOW + 60)),
                    _ => task(&name, State::Open, &[]),
                };
                (one.order, one.fence) = (n as u64, u64::from(one.state != State::Open));
                one
            })
            .collect()
    };
    let mut model = model(board(0));
    for second in 1..=60 {
        list(&mut model, board(usize::try_from(second).unwrap() * 4), second);
    }
    let shown = wide(&mut model);
    assert!(shown.contains("9999 tasks  240.0 done/min"), "{shown}");
    assert!(shown.contains("ready 9755") && shown.contains("done 240"), "{shown}");
    assert!(shown.contains("host:3      1     60      60.0"), "{shown}");
    keys(&mut model, "2");
    assert_eq!(selected(&model), Some("task-0244"));
    press(&mut model, KeyCode::End);
    assert_eq!(selected(&model), Some("task-9998"));
    assert!(wide(&mut model).contains("task-9998"));
    press(&mut model, KeyCode::PageUp);
    assert_ne!(selected(&model), Some("task-9998"));
}

#[test]
fn one_frame_as_text() {
    let mut model = model(mixed());
    let frame = text::frame(&mut model, 100);
    let wanted = "board demo of sqlite:x.db: 1 done, 1 cancelled, 1 failed, 2 blocked, 1 waiting, 2 ready, 3 running\n\
        \nrunning 3\n  TASK    WORKER  FENCE     AGE      LEFT\n  build   host:7      4    ≥30s       25s\n";
    assert!(frame.starts_with(wanted), "{frame}");
    assert!(
        frame.contains("\nblocked 2\n") && frame.contains("\nworkers 2\n") && !frame.contains("\ndone"),
        "{frame}"
    );
    let many = (0..300).map(|n| task(&format!("{n:03}"), State::Open, &[])).collect();
    let frame = text::frame(&mut self::model(many), 100);
    assert!(frame.contains("\nready 300\n") && frame.ends_with("  … and 290 more\n"), "{frame}");
    assert_eq!(text::document(&model)["running"][0]["lease"]["fence"], 4);
}
