//! What the URLs of stores have in common, for whoever writes a backend: `%XX`, and the parameters behind the `?`.

/// Why a part of a URL cannot be read. What stood there is not repeated, for it may be a password; the name of a parameter is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// A `%` without two hexadecimal digits.
    #[error("a `%` in a URL is followed by two hexadecimal digits; for the sign itself write `%25`")]
    Escape,
    /// The decoded bytes are no text.
    #[error("a URL, once decoded, is UTF-8 without NUL")]
    Text,
    /// A parameter is there twice.
    #[error("the URL has the parameter {0:?} twice")]
    Twice(String),
}

/// Decodes `%XX`. A plus is a plus.
///
/// ```
/// use coord_core::url;
///
/// assert_eq!(url::decode("a%20b+c%25")?, "a b+c%");
/// assert_eq!(url::decode("100%"), Err(url::UrlError::Escape));
/// # Ok::<(), url::UrlError>(())
/// ```
///
/// # Errors
/// [`UrlError::Escape`] and [`UrlError::Text`].
pub fn decode(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = tail;
            continue;
        }
        let digit = |n: usize| tail.get(n).and_then(|byte| char::from(*byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(UrlError::Escape) };
        // Two hexadecimal digits are at most 255.
        bytes.push((high * 16 + low) as u8);
        rest = &tail[2..];
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(UrlError::Text),
    }
}

/// The parameters behind the `?`, names and values decoded, in their order. One without `=` has an empty value; empty ones are left out.
///
/// ```
/// use coord_core::url;
///
/// let found = url::parameters("timeout=1m%2030s&&schema=a&flag")?;
/// let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
/// assert_eq!(found, [("timeout", "1m 30s"), ("schema", "a"), ("flag", "")]);
/// assert!(url::parameters("a=1&%61=2").is_err());
/// # Ok::<(), url::UrlError>(())
/// ```
///
/// # Errors
/// [`UrlError`], also if a parameter is there twice.
pub fn parameters(query: &str) -> Result<Vec<(String, String)>, UrlError> {
    let mut found: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        if found.iter().any(|(known, _)| *known == name) {
            return Err(UrlError::Twice(name));
        }
        found.push((name, value));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_what_is_none_is_refused() {
        for (text, decoded) in [("", ""), ("a b+c", "a b+c"), ("%C3%a9%3F%23%25", "é?#%"), ("é", "é")] {
            assert_eq!(decode(text).as_deref(), Ok(decoded), "{text}");
        }
        for text in ["%", "%4", "100%", "%zz", "%+1", "%é"] {
            assert_eq!(decode(text), Err(UrlError::Escape), "{text}");
        }
        for text in ["%FF", "%00", "a%C3"] {
            assert_eq!(decode(text), Err(UrlError::Text), "{text}");
        }
    }

    #[test]
    fn a_parameter_is_there_once() {
        assert_eq!(parameters("").unwrap(), []);
        assert_eq!(parameters("a=1&b=2&a=1"), Err(UrlError::Twice("a".into())));
        assert_eq!(parameters("a=%&b=2"), Err(UrlError::Escape));
        assert_eq!(parameters("a=b=c").unwrap(), [("a".to_owned(), "b=c".to_owned())]);
    }
}
