use std::net::SocketAddr;

use super::{AuditMode, Config, ConfigError, DatabaseUrl, RawConfig, Target};

fn raw(text: &str) -> RawConfig {
    RawConfig::parse(text, "a test").unwrap()
}

#[test]
fn defaults_listen_on_loopback_only() {
    let config = Config::new(RawConfig::default()).unwrap();
    assert_eq!(config.listen, SocketAddr::from(([127, 0, 0, 1], 8080)));
    assert_eq!(config.data_dir.to_str(), Some("./zorb-data"));
    assert!(!config.allow_anonymous);
}

#[test]
fn listening_beyond_loopback_requires_allow_anonymous() {
    for listen in ["0.0.0.0:8080", "[::]:8080", "192.168.1.1:80"] {
        let text = format!("listen = '{listen}'");
        assert!(matches!(Config::new(raw(&text)), Err(ConfigError::Exposed { .. })), "{listen}");
        assert!(Config::new(raw(&format!("{text}\nallow_anonymous = true"))).is_ok(), "{listen}");
    }
    for listen in ["127.0.0.1:0", "127.9.9.9:80", "[::1]:80", "localhost:80"] {
        assert!(Config::new(raw(&format!("listen = '{listen}'"))).is_ok(), "{listen}");
    }
}

#[test]
fn the_environment_wins_over_the_file_key_by_key() {
    let env = RawConfig::from_env(|name| match name {
        "ZORB_MAX_UPLOADS" => Some("7".to_owned()),
        "ZORB_ALLOW_ANONYMOUS" => Some("true".to_owned()),
        "ZORB_LOG" => Some(String::new()),
        _ => None,
    });
    let merged = env.unwrap().or(raw("max_uploads = 3\nmax_connections = 5\nlog = 'debug'"));
    assert_eq!((merged.max_uploads, merged.max_connections), (Some(7), Some(5)));
    assert_eq!(merged.allow_anonymous, Some(true));
    assert_eq!(merged.log.as_deref(), Some("debug"), "an empty variable counts as not set");
}

#[test]
fn a_wrong_key_type_or_value_is_refused_and_named() {
    let refused = |text: &str| RawConfig::parse(text, "f.toml").unwrap_err().to_string();
    assert!(refused("max_upload = 3").contains("max_upload"));
    assert!(refused("max_uploads = 'three'").contains("max_uploads"));
    assert!(refused("idle_timeout = -1").contains("idle_timeout"));
    assert!(refused("idle_timeout = 75").contains("a duration with its unit"));
    assert!(refused("read_turns = 4").contains("read_turns was renamed to max_concurrent_reads"));
    assert!(refused("max_uploads = 4\ngc_grace_days = 21").contains("gc_grace_days was renamed to gc_grace"));
    for (text, key) in [
        ("max_uploads = 0", "max_uploads"),
        ("idle_timeout = 0", "idle_timeout"),
        ("upload_budget = 0", "upload_budget"),
        ("min_upload_rate = '0B/s'", "min_upload_rate"),
        ("listen = 'nowhere'", "listen"),
        ("log_format = 'xml'", "log_format"),
        ("log = 'warning'", "log = warning"),
    ] {
        assert!(Config::new(raw(text)).unwrap_err().to_string().contains(key), "{text}");
    }
    let env = RawConfig::from_env(|name| (name == "ZORB_MAX_UPLOADS").then(|| "many".to_owned()));
    assert!(env.unwrap_err().to_string().contains("max_uploads"));
}

#[test]
fn the_documented_file_has_every_key_at_its_default() {
    let text = include_str!("../../config/default.toml");
    // The file has every key in a comment `#: key = default`. Without the marks `#: ` these lines
    // are valid TOML.
    let settings: String =
        text.lines().filter_map(|line| line.strip_prefix("#: ")).map(|line| format!("{line}\n")).collect();
    let table: toml::Table = settings.parse().unwrap();
    let mut keys: Vec<_> = table.keys().map(String::as_str).collect();
    let mut expected = RawConfig::KEYS.to_vec();
    keys.sort_unstable();
    expected.sort_unstable();
    assert_eq!(keys, expected);

    let (documented, default) = (Config::new(raw(&settings)).unwrap(), Config::new(RawConfig::default()).unwrap());
    let machine_dependent = |config: &Config| Config { verify_workers: 0, max_concurrent_reads: 0, ..config.clone() };
    assert_eq!(format!("{:?}", machine_dependent(&documented)), format!("{:?}", machine_dependent(&default)));
}

#[test]
fn tls_needs_both_files_and_does_not_open_the_server() {
    let both = "tls_cert = 'c.pem'\ntls_key = 'k.pem'";
    let files = Config::new(raw(both)).unwrap().tls.unwrap();
    assert_eq!((files.certificates.to_str(), files.key.to_str()), (Some("c.pem"), Some("k.pem")));
    for half in ["tls_cert = 'c.pem'", "tls_key = 'k.pem'", "tls_cert = 'c.pem'\ntls_key = ''"] {
        assert!(Config::new(raw(half)).unwrap_err().to_string().contains("it requires"), "{half}");
    }
    assert!(Config::new(raw("tls_cert = ''\ntls_key = ''")).unwrap().tls.is_none());
    let open = Config::new(raw(&format!("{both}\nlisten = '0.0.0.0:443'")));
    assert!(matches!(open, Err(ConfigError::Exposed { .. })), "TLS does not replace authentication");
}

#[test]
fn audit_log_is_off_or_in_a_file_or_on_stdout() {
    let target = |text: &str| Config::new(raw(&format!("audit_log = '{text}'"))).unwrap().audit_log;
    assert_eq!(target(""), None);
    assert_eq!(target("stdout"), Some(Target::Stdout));
    assert_eq!(target("./stdout"), Some(Target::File("./stdout".into())));
    assert_eq!(Config::new(raw("audit = 'all'")).unwrap().audit, AuditMode::All);
    assert!(Config::new(raw("audit = 'none'")).is_err());
}

#[test]
fn settings_of_a_bucket_are_complete_and_its_secret_is_hidden() {
    let (digits, secret) = ("5a".repeat(32), "s3_secret_key = 'hunter2'");
    let bucket = "s3_endpoint = 'http://s3'\ns3_bucket = 'b'\ns3_access_key = 'k'\ndatabase_url = 'postgres://db/z'";
    let others = format!("{bucket}\nmaster_key = '{digits}'");
    let config = Config::new(raw(&format!("{others}\ns3_secret_key = 'hunter2'\ns3_prefix = '/a/b/'"))).unwrap();
    let s3 = config.s3.as_ref().unwrap();
    assert_eq!((s3.region.as_str(), s3.prefix.as_str(), s3.secret_key.expose()), ("us-east-1", "a/b", "hunter2"));
    assert_eq!(s3.master_key.expose(), [0x5a; 32]);
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2") && !shown.contains(&digits) && !shown.contains("90, 90"), "{shown}");
    assert!(Config::new(raw("s3_bucket = ''\ns3_secret_key = ''")).unwrap().s3.is_none());
    for key in ["", "5a", &digits[1..], &format!("{digits}5a"), &digits.replace('a', "g"), &digits.replace('a', "é")] {
        let refused = Config::new(raw(&format!("{bucket}\n{secret}\nmaster_key = '{key}'"))).unwrap_err();
        let text = format!("{refused} {refused:?}");
        assert!(text.contains("master_key") && (key.is_empty() || !text.contains(key)), "{text}");
    }
    for (line, named) in [
        ("s3_secret_key = ''", "s3_secret_key or s3_secret_key_file"),
        ("s3_secret_key = 'hunter2'\ns3_prefix = 'a/../b'", "s3_prefix"),
        ("s3_secret_key = 'hunter2'\ns3_prefix = 'a/shards'", "s3_prefix"),
        ("s3_secret_key = 'hunter2'\ns3_prefix = 'a//b'", "s3_prefix"),
    ] {
        let refused = Config::new(raw(&format!("{others}\n{line}"))).unwrap_err();
        assert!(refused.to_string().contains(named) && !format!("{refused:?}").contains("hunter2"), "{refused}");
    }
    for text in [
        "s3_secret_key = ['hunter2']",
        "s3_secret_key = 'hunter2",
        "# comment\ns3_secret_keys = 'hunter2'",
        "master_key = hunter2",
        "master_key = 'hunter2",
        "master_key 'hunter2'",
        "master_keys = 'hunter2'",
    ] {
        let refused = RawConfig::parse(text, "f.toml").unwrap_err();
        assert!(!format!("{refused:?} {refused}").contains("hunter2"), "{refused}");
    }
}

#[test]
fn a_database_url_is_validated_and_never_shown() {
    let url = "postgres://zorb:hunter2@db.example/zorb";
    let config = Config::new(raw(&format!("database_url = '{url}'"))).unwrap();
    assert_eq!(config.database.as_ref().map(DatabaseUrl::expose), Some(url));
    assert!(!format!("{config:?}").contains("hunter2"));
    assert!(Config::new(raw("database_url = ''")).unwrap().database.is_none());
    let refused = Config::new(raw("database_url = 'mysql://zorb:hunter2@db/zorb'")).unwrap_err();
    assert!(refused.to_string().contains("postgres://USER"), "{refused}");
    assert!(!format!("{refused:?} {refused}").contains("hunter2"), "{refused}");
    for text in [
        &format!("database_url = '{url}"),
        &format!("# comment\ndatabase_urls = '{url}'"),
        &format!("database_url = ['{url}']"),
        &format!("max_uploads = '{url}'"),
    ] {
        let refused = RawConfig::parse(text, "f.toml").unwrap_err();
        assert!(!format!("{refused:?} {refused}").contains("hunter2"), "{refused}");
        assert!(refused.to_string().contains("line "), "{refused}");
    }
}
