//! Actions that are done at most once: `coord once`, and `coord effect` for who has to look at them.

pub(crate) mod args;
mod command;
mod kept;
pub(crate) mod once;
pub(crate) mod operate;
mod probe;
mod shown;
pub(crate) mod task;

use std::time::Duration;

use coord_core::effects::RunContext;

/// Longer than anybody waits: until whoever is at it ends, or, for a task, until its own lease does.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// What the command of an action sees.
pub(crate) fn variables(context: &RunContext, attempt: u32) -> Vec<(String, String)> {
    vec![
        ("COORD_KEY".to_owned(), context.action().key.to_string()),
        ("COORD_RESOURCE".to_owned(), context.action().resource.to_string()),
        ("COORD_FENCE".to_owned(), context.fence().to_string()),
        ("COORD_ATTEMPT".to_owned(), attempt.to_string()),
        ("COORD_DOWNSTREAM_KEY".to_owned(), context.downstream_key().to_owned()),
    ]
}

/// A text as one word of a shell. One that would not be seen as it is, or would do something to the terminal, is written with escapes.
pub(crate) fn word(text: &str) -> String {
    if crate::output::clean(text) == text {
        return format!("'{}'", text.replace('\'', r"'\''"));
    }
    let mut word = String::from("$'");
    for c in text.chars() {
        let plain = c.to_string();
        if c == '\'' || c == '\\' {
            word.extend(['\\', c]);
        } else if crate::output::clean(&plain) == plain {
            word.push(c);
        } else {
            word.extend(plain.bytes().map(|byte| format!("\\{byte:03o}")));
        }
    }
    word.push('\'');
    word
}

/// A command of a shell with a key: such that the key is not taken for an option.
pub(crate) fn with_key(command: &str, key: &str, options: &str) -> String {
    if key.starts_with('-') {
        format!("{command}{options} -- {}", word(key))
    } else {
        format!("{command} {}{options}", word(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_word_as_the_text_that_it_stands_for() {
        let texts =
            ["a b", "it's", "$(x) `y` \\ \"z\" *", "-x", "a\nb", "\u{1b}[31m'\\7", "\u{202e}\u{e9}", "\t1"];
        for text in texts {
            let script = format!("printf %s {}", word(text));
            assert_eq!(crate::output::clean(&script), script);
            let printed = std::process::Command::new("bash").args(["-c", &script]).output().expect("bash");
            assert_eq!(String::from_utf8_lossy(&printed.stdout), text, "{script}");
        }
        assert_eq!(with_key("show", "k", " --x"), "show 'k' --x");
        assert_eq!(with_key("show", "-k", " --x"), "show --x -- '-k'");
    }
}
