//! What is on the screen: a function of the state that draws into a buffer of any size.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::explain::{brief, explain};
use super::model::{Mode, Model, Tab};
use super::table::{colored, pace, put, table};
use super::work::WINDOW;
use crate::output;

/// From this height on, the list of running tasks has the workers below it.
const SPLIT: u16 = 12;

/// The parts of the screen. What there is no room for is empty.
#[derive(Clone, Copy, Debug)]
struct Parts {
    head: Rect,
    tabs: Rect,
    body: Rect,
    /// How the store does.
    link: Rect,
    /// Questions, answers and keys.
    foot: Rect,
}

fn parts(area: Rect) -> Parts {
    let mut top = area.y;
    let mut take = |height: u16| {
        let part = Rect { x: area.x, y: top, width: area.width, height };
        top += height;
        part
    };
    let line = |there: bool| u16::from(there);
    let (head, tabs) = (take(line(area.height >= 5)), take(line(area.height >= 3)));
    let below = line(area.height >= 1) + line(area.height >= 8);
    let body = take(area.height.saturating_sub(head.height + tabs.height + below));
    let (link, foot) = (take(line(area.height >= 8)), take(line(area.height >= 1)));
    Parts { head, tabs, body, link, foot }
}

/// The list, and the workers below it.
fn halves(model: &Model, body: Rect) -> (Rect, Rect) {
    let count = u16::try_from(model.count(Tab::Workers)).unwrap_or(u16::MAX);
    let none = Rect { y: body.bottom(), height: 0, ..body };
    if model.tab != Tab::Running || body.height < SPLIT || count == 0 {
        return (body, none);
    }
    // A line of heads, and one that keeps it apart.
    let height = count.min(body.height / 3) + 1;
    let list = Rect { height: body.height - height - 1, ..body };
    (list, Rect { y: list.bottom() + 1, height, ..body })
}

/// How many rows of the list, or lines of what lies over it, are on the screen; at least one.
pub(crate) fn page(model: &Model) -> usize {
    let body = parts(screen(model)).body;
    let height = match model.mode {
        Mode::Explain { .. } | Mode::Help { .. } => body.height,
        _ => halves(model, body).0.height.saturating_sub(1),
    };
    usize::from(height.max(1))
}

/// How far the text that lies over the list can be scrolled.
pub(crate) fn overlay_end(model: &Model) -> usize {
    overlay(model, model.size.0).len().saturating_sub(page(model))
}

fn screen(model: &Model) -> Rect {
    Rect { x: 0, y: 0, width: model.size.0, height: model.size.1 }
}

/// Draws everything.
pub(crate) fn render(model: &Model, area: Rect, buf: &mut Buffer) {
    let area = area.intersection(buf.area);
    let parts = parts(area);
    head(model, parts.head, buf);
    tabs(model, parts.tabs, buf);
    body(model, parts.body, buf);
    if !parts.link.is_empty() {
        let (text, bad) = link(model);
        let style = if bad { alarm(model) } else { Style::new().add_modifier(Modifier::DIM) };
        put(buf, area.x, parts.link.y, &text, area.width, false, style);
    }
    foot(model, &parts, buf);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn alarm(model: &Model) -> Style {
    colored(model, Color::Red).add_modifier(Modifier::BOLD)
}

fn head(model: &Model, area: Rect, buf: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    let right = match &model.answer {
        Some(_) => {
            format!("{}  {} done/min", output::tasks(model.counts.total()), pace(model.work.all_a_minute()))
        }
        None => String::new(),
    };
    let left = format!("coord top  {}  {}", model.board, model.store);
    let width = u16::try_from(output::width(&right)).unwrap_or(u16::MAX);
    // Which board it is matters more.
    let width = if width < area.width / 2 { width } else { 0 };
    let room = area.width.saturating_sub(if width > 0 { width + 2 } else { 0 });
    put(buf, area.x, area.y, &left, room, false, bold());
    put(buf, area.right() - width, area.y, &right, width, false, bold());
}

/// The names of the lists, each with what is in it; on a narrow screen those around the shown one.
fn tabs(model: &Model, area: Rect, buf: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    let names: Vec<String> =
        Tab::ALL.iter().map(|tab| format!(" {} {} ", tab.as_str(), model.count(*tab))).collect();
    let widths: Vec<u16> = names.iter().map(|name| u16::try_from(name.len()).unwrap_or(u16::MAX)).collect();
    let shown = model.tab.index();
    let mut first = 0;
    while first < shown && widths[first..=shown].iter().sum::<u16>() > area.width {
        first += 1;
    }
    let mut x = area.x;
    for (tab, (name, width)) in Tab::ALL.iter().zip(names.iter().zip(widths)).skip(first) {
        let empty = model.count(*tab) == 0;
        let style = match tab {
            _ if empty => Style::new().add_modifier(Modifier::DIM),
            Tab::Blocked | Tab::Failed | Tab::Cancelled => colored(model, Color::Red),
            Tab::Running => colored(model, Color::Cyan),
            Tab::Done => colored(model, Color::Green),
            _ => Style::new(),
        };
        let style = if *tab == model.tab {
            style.remove_modifier(Modifier::DIM).add_modifier(Modifier::REVERSED | Modifier::BOLD)
        } else {
            style
        };
        put(buf, x, area.y, name, width.min(area.right().saturating_sub(x)), false, style);
        x = x.saturating_add(width);
    }
}

fn body(model: &Model, area: Rect, buf: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    if let Mode::Explain { scroll, .. } | Mode::Help { scroll } = model.mode {
        let lines = overlay(model, area.width);
        let height = usize::from(area.height);
        let first = scroll.min(lines.len().saturating_sub(height));
        for (y, line) in (area.y..).zip(lines.iter().skip(first).take(height)) {
            let style = if first == 0 && y == area.y { bold() } else { Style::new() };
            put(buf, area.x, y, line, area.width, false, style);
        }
        return;
    }
    let (list, below) = halves(model, area);
    let count = model.len();
    if count == 0 {
        let text = match (&model.answer, model.filter.is_empty(), model.counts.total()) {
            (None, ..) => "listing the board …".to_owned(),
            (_, false, _) => format!("nothing in this list contains {:?}; Esc shows all", model.filter),
            (_, _, 0) => "the board has no tasks; `coord add PLAN.toml` adds some".to_owned(),
            _ if model.tab == Tab::Workers => "no worker holds a task or has done one lately".to_owned(),
            _ => format!("no task is {}", model.tab.as_str()),
        };
        put(buf, list.x, list.y, &text, list.width, false, Style::new().add_modifier(Modifier::DIM));
    } else {
        let room = usize::from(list.height.saturating_sub(1));
        // The selected row is in the middle, so that one sees what is around it.
        let first = model.cursor.saturating_sub(room / 2).min(count.saturating_sub(room));
        table(model, model.tab, first, Some(model.cursor), list, buf);
    }
    table(model, Tab::Workers, 0, None, below, buf);
    let hidden = model.workers().len().saturating_sub(usize::from(below.height.saturating_sub(1)));
    if !below.is_empty() && hidden > 0 {
        let text = format!("… and {hidden} more: press 8");
        put(buf, below.x, below.y - 1, &text, below.width, false, Style::new().add_modifier(Modifier::DIM));
    }
}

/// How the store does, and whether that is bad.
fn link(model: &Model) -> (String, bool) {
    let old = model.answer.map(|answer| brief(model.at.saturating_sub(answer.at)));
    if let Some(trouble) = &model.trouble {
        let since = brief(model.at.saturating_sub(trouble.since));
        let shown = old.map(|old| format!("; this is {old} old")).unwrap_or_default();
        return (format!("store away for {since}{shown}, trying again: {}", trouble.error), true);
    }
    let asking = model.asking.map(|since| model.at.saturating_sub(since)).filter(|time| time.as_secs() >= 2);
    let mut text = match (model.answer, old) {
        (Some(answer), Some(old)) => format!("listed {old} ago in {}ms", answer.took.as_millis()),
        _ => "not listed yet".to_owned(),
    };
    if let Some(asking) = asking {
        text.push_str(&format!(", no answer for {}", brief(asking)));
    }
    if model.answer.is_some_and(|answer| !answer.whole) {
        text.push_str(", in pages that are not of one instant");
    }
    if !model.filter.is_empty() {
        text.push_str(&format!("; only what contains {:?}", model.filter));
    }
    (text, asking.is_some())
}

/// A question, else an answer, else what is going on, else the keys.
fn foot(model: &Model, parts: &Parts, buf: &mut Buffer) {
    let area = parts.foot;
    if area.is_empty() {
        return;
    }
    let mut say = |text: &str, style: Style| put(buf, area.x, area.y, text, area.width, false, style);
    match (&model.mode, &model.notice, &model.doing) {
        (Mode::Confirm(id), ..) => {
            let holder = model.find(id).and_then(|(task, _)| task.owner.as_ref());
            let holder = holder.map(|owner| format!(", held by {owner}")).unwrap_or_default();
            // Whatever is too long, the question itself is seen.
            let room = usize::from(area.width).saturating_sub("cancel ? y/n".len());
            let whole = format!("{id}{holder}");
            let what = if output::width(&whole) <= room { whole } else { output::fit(id.as_str(), room) };
            say(&format!("cancel {what}? y/n"), alarm(model));
        }
        (Mode::Filter { .. }, ..) => {
            // Its end is what one types at.
            let room = usize::from(area.width).saturating_sub("filter: _".len());
            let mut typed = output::clean(&model.filter);
            while output::width(&typed) > room && !typed.is_empty() {
                typed.remove(0);
            }
            say(&format!("filter: {typed}_"), bold());
        }
        (_, Some(notice), _) => {
            say(&notice.text, if notice.bad { alarm(model) } else { colored(model, Color::Green) });
        }
        (_, None, Some((change, id))) => say(&format!("{} {id} …", change.as_str()), bold()),
        _ if parts.link.is_empty() && link(model).1 => say(&link(model).0, alarm(model)),
        _ => say(&keys(model, usize::from(area.width)), Style::new()),
    }
}

/// As many of the keys as there is room for.
fn keys(model: &Model, width: usize) -> String {
    let over = matches!(model.mode, Mode::Explain { .. } | Mode::Help { .. });
    let mut hints: Vec<&str> = Vec::new();
    if model.read_only {
        hints.push("read-only");
    }
    hints.extend(["q quit", if over { "Esc back" } else { "? help" }]);
    if !model.read_only && !matches!(model.mode, Mode::Help { .. }) {
        hints.extend(["c cancel", "r retry"]);
    }
    if !over {
        hints.extend(["e explain", "/ filter", "Tab next list"]);
    }
    let mut text = String::new();
    for hint in hints {
        let longer = if text.is_empty() { hint.to_owned() } else { format!("{text}  {hint}") };
        if longer.len() > width && !text.is_empty() {
            break;
        }
        text = longer;
    }
    text
}

/// The text that lies over the list, in lines that are not wider than this.
fn overlay(model: &Model, width: u16) -> Vec<String> {
    let lines = match &model.mode {
        Mode::Explain { id, .. } => explain(model, id),
        Mode::Help { .. } => help(model),
        _ => Vec::new(),
    };
    lines.iter().flat_map(|line| wrap(&output::clean(line), usize::from(width))).collect()
}

fn help(model: &Model) -> Vec<String> {
    let window = WINDOW.as_secs() / 60;
    let mut lines = vec![
        "Keys".to_owned(),
        String::new(),
        "  Up Down k j      select a task; PageUp PageDown Home End g G too".into(),
        "  Tab Left Right   next list, one back, one on; 1 to 8 go to it".into(),
        "  e Enter          explain: who holds it, what it waits for, until when".into(),
        "  c                cancel the task, after a question".into(),
        "  r                retry: open a failed or cancelled task again".into(),
        "  /                show only what contains a text; Esc shows all again".into(),
        "  Ctrl-L           draw everything anew".into(),
        "  q Ctrl-C         quit".into(),
        String::new(),
    ];
    if model.read_only {
        lines.push("read-only: c and r change nothing.".into());
    }
    lines.extend([
        "AGE is how long a claim is held; ≥ says that it was there before it was first looked for. LEFT is what its lease has left, \
         in the store's time: after that anybody may take the task over."
            .to_owned(),
        format!(
            "DONE and A MINUTE are of the last {window} minutes, as far as coord top was looking. A task that came and went between \
             two lists is counted as (not seen)."
        ),
        "READY includes what has to wait for its time: WHEN tells how long.".into(),
    ]);
    lines
}

/// Breaks a line into lines that are not wider than this, at spaces where that is possible.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let indent = line.len() - line.trim_start_matches(' ').len();
    let indent = if indent + 8 < width { indent } else { 0 };
    let mut lines = Vec::new();
    let mut current = String::new();
    for word in line.split_inclusive(' ') {
        let fits = output::width(&current) + output::width(word.trim_end()) <= width;
        if !fits && !current.trim().is_empty() {
            lines.push(current.trim_end().to_owned());
            current = " ".repeat(indent);
        }
        for c in word.chars() {
            if output::width(&current) + output::width(c.encode_utf8(&mut [0; 4])) > width && c != ' ' {
                if !current.trim().is_empty() {
                    lines.push(current.clone());
                }
                current = " ".repeat(indent);
            }
            current.push(c);
        }
    }
    lines.push(current.trim_end().to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_spaces_and_never_too_wide() {
        assert_eq!(wrap("", 10), [""]);
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("  one two three four", 12), ["  one two", "  three four"]);
        assert_eq!(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("日本語日本語", 5), ["日本", "語日", "本語"]);
        for width in 0..30 {
            for line in wrap("  a line of words, some-of-which-are-long, 日本語 and more of them", width) {
                assert!(output::width(&line) <= width.max(2), "{width}: {line:?}");
            }
        }
    }

    #[test]
    fn the_parts_fill_every_screen_without_a_gap() {
        for height in 0..40 {
            let parts = parts(Rect { x: 0, y: 0, width: 10, height });
            let all = [parts.head, parts.tabs, parts.body, parts.link, parts.foot];
            assert_eq!(all.iter().map(|part| part.height).sum::<u16>(), height);
            let mut y = 0;
            for part in all {
                assert_eq!(part.y, y);
                y += part.height;
            }
        }
    }
}
