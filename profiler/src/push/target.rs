//! Which engine profiles are sent to, and at which address.

use std::net::IpAddr;
use ureq::http::Uri;

/// An engine, by what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Whatever takes OTLP profiles over HTTP: the OpenTelemetry Collector, and engines behind it.
    Otlp,
    /// Grafana Pyroscope, and Alloy's `pyroscope.receive_http`.
    Pyroscope,
    /// Parca.
    Parca,
}

impl Engine {
    const ALL: [(&'static str, Self); 3] =
        [("otlp", Self::Otlp), ("pyroscope", Self::Pyroscope), ("parca", Self::Parca)];

    /// Where it takes them.
    fn path(self) -> &'static str {
        match self {
            Self::Otlp => "/v1development/profiles",
            Self::Pyroscope => "/push.v1.PusherService/Push",
            Self::Parca => "/api/profiles/writeraw",
        }
    }

    /// Whether it adds up what profiles say was allocated. Parca is told of all since the process began, as of Go's own.
    pub(super) fn adds_up(self) -> bool {
        !matches!(self, Self::Parca)
    }
}

/// Where profiles are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) engine: Engine,
    /// As it was given.
    pub(super) url: String,
    /// Where requests go.
    pub(super) endpoint: Uri,
}

/// `ENGINE+http://HOST:PORT/PATH`: the path is what comes before the engine's own, behind a proxy.
pub(super) fn parse(text: &str) -> Result<Target, String> {
    let form = "it is otlp, pyroscope or parca, then +http:// or +https://, and a host with its port";
    let (name, address) = text.split_once('+').ok_or(form)?;
    let found = Engine::ALL.into_iter().find(|(known, _)| *known == name);
    let (_, engine) = found.ok_or_else(|| format!("no engine is called {name:?}; {form}"))?;
    let given: Uri = address.parse().map_err(|error| format!("{error}; {form}"))?;
    let is_http = matches!(given.scheme_str(), Some("http" | "https"));
    if !is_http || given.host().is_none_or(str::is_empty) {
        return Err(form.into());
    }
    if given.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("others can read a command line; give the token by --push-token-file".into());
    }
    if given.query().is_some() || address.contains('#') {
        return Err("an address ends with its path".into());
    }
    let address = address.trim_end_matches('/');
    let address = address.strip_suffix(engine.path()).unwrap_or(address);
    let endpoint =
        format!("{address}{}", engine.path()).parse().map_err(|error| format!("{error}; {form}"))?;
    Ok(Target { engine, url: text.to_owned(), endpoint })
}

impl Target {
    /// Whether the engine is on this machine.
    pub(super) fn is_here(&self) -> bool {
        let host = self.endpoint.host().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }

    /// Whether what is sent can be read on its way.
    pub(super) fn is_open_to_listeners(&self) -> bool {
        self.endpoint.scheme_str() == Some("http") && !self.is_here()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_an_engine_and_no_secrets() {
        let endpoint = |text: &str| parse(text).map(|target| target.endpoint.to_string());
        assert_eq!(endpoint("otlp+http://h:4318").unwrap(), "http://h:4318/v1development/profiles");
        assert_eq!(
            endpoint("otlp+http://h:4318/v1development/profiles").unwrap(),
            endpoint("otlp+http://h:4318/").unwrap()
        );
        let behind_proxy = "https://h/keep/push.v1.PusherService/Push";
        assert_eq!(endpoint("pyroscope+https://h/keep/").unwrap(), behind_proxy);
        assert_eq!(endpoint("parca+http://[::1]:7070").unwrap(), "http://[::1]:7070/api/profiles/writeraw");
        for bad in [
            "http://h",
            "jaeger+http://h",
            "otlp+h:1",
            "otlp+grpc://h:1",
            "otlp+http://",
            "otlp+http:///x",
            "otlp+http://h?a=b",
            "parca+http://h/#a",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("otlp+http://me:secret@h").unwrap_err().contains("--push-token-file"));
    }

    #[test]
    fn it_is_known_who_can_listen() {
        let is_open = |text: &str| parse(text).unwrap().is_open_to_listeners();
        assert!(is_open("otlp+http://engine:4318") && is_open("otlp+http://10.0.0.1"));
        assert!(!is_open("otlp+https://engine") && !is_open("otlp+http://localhost:1"));
        assert!(!is_open("otlp+http://127.0.0.2:1") && !is_open("otlp+http://[::1]:1"));
    }
}
