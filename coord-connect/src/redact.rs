//! URLs that can be shown.

/// What the name of a parameter contains if its value is a secret.
const SECRET: [&str; 9] =
    ["pass", "pwd", "secret", "token", "key", "auth", "credential", "signature", "private"];

/// A URL without its secrets, for logs and errors: what stands before the last `@`, the values of parameters whose name sounds like a
/// secret, and the fragment become `***`. It works on any text, also on one that is no URL, and hides rather too much.
///
/// ```
/// use coord_connect::redact;
///
/// assert_eq!(redact("redis://me:pa#s/s@host:6379/0?password=x&ssl=on"), "redis://***@host:6379/0?password=***&ssl=on");
/// assert_eq!(redact("sqlite:.coord/coord.db?durability=full"), "sqlite:.coord/coord.db?durability=full");
/// ```
#[must_use]
pub fn redact(url: &str) -> String {
    let (scheme, rest) = match url.split_once(':') {
        Some((scheme, rest)) => match rest.strip_prefix("//") {
            Some(rest) => (format!("{scheme}://"), rest),
            None => (format!("{scheme}:"), rest),
        },
        None => (String::new(), url),
    };
    // A password may contain any sign that ends it in a right URL, so only the last `@` counts.
    let (user, rest) = match rest.rsplit_once('@') {
        // Without a scheme, the text before the first colon is a part of what is hidden.
        Some((_, rest)) if scheme.ends_with("//") || scheme.is_empty() => (format!("{scheme}***@"), rest),
        Some((_, rest)) => ("***@".to_owned(), rest),
        None => (scheme, rest),
    };
    let (rest, fragment) = match rest.split_once('#') {
        Some((rest, _)) => (rest, "#***"),
        None => (rest, ""),
    };
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, format!("?{}", redact_query(query))),
        None => (rest, String::new()),
    };
    format!("{user}{path}{query}{fragment}")
}

fn redact_query(query: &str) -> String {
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}=***"),
        _ => parameter.to_owned(),
    });
    parameters.collect::<Vec<_>>().join("&")
}

fn is_secret(name: &str) -> bool {
    // A name that is not plain could spell anything.
    let name = name.to_ascii_lowercase();
    name.contains('%') || SECRET.iter().any(|secret| name.contains(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden_wherever_they_stand() {
        for url in [
            "redis://:hunter2@host",
            "redis://me:hunter2@host/0",
            "redis://me:a/b?hunter2#x@host",
            "redis://me:x@hunter2@host",
            "postgres:me:hunter2@host",
            "me:hunter2@host",
            "hunter2@host",
            "postgres://host/db?password=hunter2",
            "postgres://host/db?sslmode=on&PGPASSWORD=hunter2&x=1",
            "postgres://host/db?p%61ssword=hunter2",
            "nats://host?Token=hunter2",
            "etcd://host?private_key=hunter2",
            "redis://host#hunter2",
            "redis://me:hunter2@host?x=a@b",
        ] {
            let shown = redact(url);
            assert!(!shown.contains("hunter2") && shown.contains("***"), "{url} -> {shown}");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for url in [
            "memory:",
            "sqlite:/a/b.db?busy_timeout=5s",
            "redis://host:1/0?ssl=on&db",
            "",
            "x.db",
            "a:b:c",
            "?",
            "#",
        ] {
            let shown = redact(url);
            assert!(shown == url || url == "#", "{url} -> {shown}");
        }
    }
}
