//! The setting `cors_origins`: the origins of web pages that may use the server.

use super::error::ConfigError;

/// Parses origins, separated by commas or spaces. Each must have exactly the form that a browser
/// sends, because another form would never match.
pub(super) fn parse(text: Option<String>) -> Result<Vec<String>, ConfigError> {
    let text = text.unwrap_or_default();
    let refused = |origin: &str| ConfigError::Value {
        key: "cors_origins",
        value: origin.to_owned(),
        reason: "expected the Origin that a browser sends: http:// or https://, a lower-case host, and a port other \
             than the default; like https://models.example"
            .to_owned(),
    };
    let entries = text.split([',', ' ']).filter(|entry| !entry.is_empty());
    let check = |origin: &str| {
        let (host, usual_port) = match origin.split_once("://") {
            Some(("http", host)) => (host, ":80"),
            Some(("https", host)) => (host, ":443"),
            _ => return Err(refused(origin)),
        };
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_:[]".contains(&byte);
        let is_host = host.bytes().all(is_plain) && !host.is_empty() && !host.starts_with(':') && !host.ends_with(':');
        if is_host && !host.ends_with(usual_port) { Ok(origin.to_owned()) } else { Err(refused(origin)) }
    };
    entries.map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_taken_as_browsers_send_them_and_nothing_else() {
        let parsed = parse(Some("https://a.example,http://localhost:3000  http://[::1]:8".to_owned())).unwrap();
        assert_eq!(parsed, ["https://a.example", "http://localhost:3000", "http://[::1]:8"]);
        assert_eq!(parse(None).unwrap(), [""; 0]);
        for wrong in ["*", "null", "a.example", "https://", "https://A.example", "https://a.example/", "https://:80"] {
            assert!(parse(Some(wrong.to_owned())).is_err(), "{wrong}");
        }
        for wrong in ["https://a.example:443", "http://a.example:80", "ftp://a.example", "https://a@b", "https://a:"] {
            assert!(parse(Some(wrong.to_owned())).is_err(), "{wrong}");
        }
    }
}
