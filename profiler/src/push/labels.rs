//! What a profile is found by.

use super::target::Engine;

/// The longest value that the engines take.
const MAX_VALUE: usize = 1024;
/// What a service is called, in labels and in OTLP's attributes.
const SERVICE: [&str; 2] = ["service_name", "service.name"];

/// Labels of all profiles of a recording.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    /// The service's name, then those that were given.
    all: Vec<(String, String)>,
}

/// A label as it is given: `KEY=VALUE`.
pub(super) fn parse(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it is KEY=VALUE")?;
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let fine = |c: char| is_letter(c) || c.is_ascii_digit() || c == '.';
    if !key.starts_with(is_letter) || !key.chars().all(fine) || key.starts_with("__") {
        return Err("a key has letters, digits, '_' and '.', begins with a letter, and not with '__'".into());
    }
    if value.is_empty() || value.len() > MAX_VALUE || value.contains(char::is_control) {
        return Err(format!("a value has 1 to {MAX_VALUE} bytes, and no control characters"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// As engines without dots in their labels have it.
fn flat(key: &str) -> String {
    key.replace('.', "_")
}

impl Labels {
    /// Those that were given, and the service's name where it was not.
    ///
    /// # Errors
    /// With a label that was given twice.
    pub(super) fn new(given: &[(String, String)], service: String) -> Result<Self, String> {
        let mut all = vec![(SERVICE[0].to_owned(), service)];
        for (at, (key, value)) in given.iter().enumerate() {
            if given[..at].iter().any(|(other, _)| flat(other) == flat(key)) {
                return Err(key.clone());
            }
            match SERVICE.contains(&key.as_str()) {
                true => all[0].1.clone_from(value),
                false => all.push((key.clone(), value.clone())),
            }
        }
        Ok(Self { all })
    }

    /// Those of a process, as an engine has them. What was given goes before what is known.
    pub(super) fn of(&self, engine: Engine, pid: u32, command: &str) -> Vec<(String, String)> {
        let own = match engine {
            Engine::Otlp => {
                let mut own = self.all.clone();
                own[0].0 = SERVICE[1].to_owned();
                return with(own, vec![("process.executable.name".to_owned(), command.to_owned())]);
            }
            Engine::Pyroscope => vec![("__name__", "memory"), ("__delta__", "false")],
            Engine::Parca => vec![("__name__", "memory")],
        };
        let own = own.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let all = own.chain(self.all.iter().map(|(key, value)| (flat(key), value.clone()))).collect();
        with(all, vec![("pid".to_owned(), pid.to_string()), ("command".to_owned(), command.to_owned())])
    }
}

fn with(mut all: Vec<(String, String)>, more: Vec<(String, String)>) -> Vec<(String, String)> {
    for (key, value) in more {
        if !value.is_empty() && !all.iter().any(|(other, _)| *other == key) {
            all.push((key, value));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(given: &[&str]) -> Result<Labels, String> {
        let given: Vec<_> = given.iter().map(|text| parse(text).unwrap()).collect();
        Labels::new(&given, "app".into())
    }

    #[test]
    fn each_engine_has_labels_in_its_own_way() {
        let pairs = |of: &Labels, engine| {
            let all = of.of(engine, 7, "app");
            all.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        let plain = labels(&[]).unwrap();
        assert_eq!(pairs(&plain, Engine::Parca), "__name__=memory service_name=app pid=7 command=app");
        assert_eq!(pairs(&plain, Engine::Otlp), "service.name=app process.executable.name=app");
        let given = labels(&["deployment.environment=test = 1", "service.name=mine", "pid=all"]).unwrap();
        assert_eq!(
            pairs(&given, Engine::Pyroscope),
            "__name__=memory __delta__=false service_name=mine deployment_environment=test = 1 pid=all command=app"
        );
        assert_eq!(
            pairs(&given, Engine::Otlp),
            "service.name=mine deployment.environment=test = 1 pid=all process.executable.name=app"
        );
    }

    #[test]
    fn what_no_engine_takes_is_refused() {
        for bad in ["", "a", "=b", "a=", "1a=b", "a b=c", "__name__=cpu", "a-b=c", "a=\n", ".a=b"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(labels(&["a.b=1", "a_b=2"]).unwrap_err(), "a_b");
        assert_eq!(labels(&["service_name=1", "service.name=2"]).unwrap_err(), "service.name");
    }
}
