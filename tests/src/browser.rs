//! A browser without a window, driven as a person would: W3C WebDriver over HTTP, by Chromium's own driver.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a page may take to become what is waited for: on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name under which an element's id stands in what WebDriver says.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys of a keyboard, as WebDriver has them.
pub mod keys {
    #![expect(missing_docs, reason = "they are called as on a keyboard")]
    pub const BACKSPACE: &str = "\u{e003}";
    pub const TAB: &str = "\u{e004}";
    pub const ENTER: &str = "\u{e007}";
    pub const ESCAPE: &str = "\u{e00c}";
    pub const END: &str = "\u{e010}";
    pub const HOME: &str = "\u{e011}";
    pub const LEFT: &str = "\u{e012}";
    pub const UP: &str = "\u{e013}";
    pub const RIGHT: &str = "\u{e014}";
    pub const DOWN: &str = "\u{e015}";
}

/// What the driver answers to a command.
fn value_of(command: &str, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Value {
    let mut answer = answer.unwrap_or_else(|error| panic!("{command}: {error}"));
    let text = answer.body_mut().with_config().limit(64 << 20).read_to_string();
    let text = text.unwrap_or_else(|error| panic!("{command}: {error}"));
    let mut value: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{command}: {text}"));
    assert!(answer.status().is_success(), "{command}: {}", value["value"]["message"]);
    value["value"].take()
}

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    driver: Child,
    session: String,
    agent: ureq::Agent,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser itself ends with its session.
        let _ = self.agent.delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

impl Browser {
    /// Starts a browser with a window of this size.
    ///
    /// # Panics
    /// If Chromium or its driver can't be started.
    pub fn new(width: u32, height: u32) -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("chromedriver can't be started ({error}): ./test installs it"));
        let mut lines = BufReader::new(driver.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        let port = port.expect("chromedriver says its port");
        // It says no more, and would have to wait if nobody read it.
        std::thread::spawn(move || lines.for_each(drop));
        let agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().new_agent();
        // Tests run as root and in containers, where there is neither a user namespace nor much shared memory.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--force-color-profile=srgb",
            &format!("--window-size={width},{height}"),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {"browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"}, "goog:chromeOptions": {"args": arguments}}}});
        let mut browser = Self { driver, session: format!("http://127.0.0.1:{port}/session"), agent };
        let answer = browser.post("", &wanted);
        let id = answer["sessionId"].as_str().unwrap_or_else(|| panic!("no session: {answer}"));
        browser.session = format!("{}/{id}", browser.session);
        browser
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let address = format!("{}{path}", self.session);
        let answer = self.agent.post(address).content_type("application/json").send(body.to_string());
        value_of(path, answer)
    }

    /// Opens a file, and waits until its script says that it is ready.
    pub fn open(&self, page: &Path) {
        self.go(&format!("file://{}", page.display()));
    }

    /// Opens an address, and waits until the page's script says that it is ready.
    ///
    /// # Panics
    /// If the page fails.
    pub fn go(&self, address: &str) {
        self.post("/url", &json!({"url": address}));
        self.until(
            "return document.documentElement.dataset.ready || document.documentElement.dataset.failed",
        );
        let failed = self.script("return document.documentElement.dataset.failed || null");
        assert!(failed.is_null(), "the page failed: {failed}");
    }

    /// What a script returns.
    pub fn script(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// What a script returns as text.
    pub fn text(&self, script: &str) -> String {
        self.script(script).as_str().unwrap_or_default().to_owned()
    }

    /// Waits for a script to return what is true, and answers it.
    ///
    /// # Panics
    /// If it doesn't.
    pub fn until(&self, script: &str) -> Value {
        let start = Instant::now();
        loop {
            let value = self.script(script);
            if !(value.is_null() || value == json!(false) || value == json!("") || value == json!(0)) {
                return value;
            }
            assert!(start.elapsed() < PATIENCE, "never true: {script}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn element(&self, selector: &str) -> Value {
        self.post("/element", &json!({"using": "css selector", "value": selector}))
    }

    /// Clicks on an element; one that something else covers can't be clicked.
    ///
    /// # Panics
    /// If it can't be clicked.
    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        let id = element[ELEMENT].as_str().expect("an element has an id");
        self.post(&format!("/element/{id}/click"), &json!({}));
        self.settle();
    }

    /// Lets the page draw what it has been told.
    pub fn settle(&self) {
        self.post(
            "/execute/async",
            &json!({"script": "const done = arguments[0];
                requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(() => done())));", "args": []}),
        );
    }

    /// Presses and releases keys, one after the other, wherever the focus is.
    pub fn press(&self, keys: &[&str]) {
        let actions = keys.iter().flat_map(|key| {
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        });
        let actions: Vec<Value> = actions.collect();
        self.post("/actions", &json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]}));
        self.settle();
    }

    /// Types a text, wherever the focus is.
    pub fn type_text(&self, text: &str) {
        let letters: Vec<String> = text.chars().map(String::from).collect();
        self.press(&letters.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Presses the mouse at one place, given as parts of an element's width and height, and releases it at another.
    pub fn drag(&self, selector: &str, from: (f64, f64), to: (f64, f64)) {
        let place = self.script(&format!(
            "const place = document.querySelector({selector:?}).getBoundingClientRect();
             return [place.left, place.top, place.width, place.height]"
        ));
        let [left, top, width, height] = [0, 1, 2, 3].map(|at| place[at].as_f64().expect("a number"));
        let at = |(x, y): (f64, f64)| ((left + x * width).round() as i64, (top + y * height).round() as i64);
        let move_to = |(x, y): (i64, i64), duration: u32| json!({"type": "pointerMove", "x": x, "y": y, "duration": duration, "origin": "viewport"});
        let actions = [
            move_to(at(from), 0),
            json!({"type": "pointerDown", "button": 0}),
            move_to(at(to), 60),
            json!({"type": "pointerUp", "button": 0}),
        ];
        self.post(
            "/actions",
            &json!({"actions": [{"type": "pointer", "id": "mouse",
            "parameters": {"pointerType": "mouse"}, "actions": actions}]}),
        );
        self.settle();
    }

    /// Gives the window another size.
    pub fn resize(&self, width: u32, height: u32) {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height,
            "deviceScaleFactor": 1, "mobile": false}),
        );
        self.settle();
    }

    /// Lets the system prefer light or dark colours.
    pub fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
        self.settle();
    }

    /// Sends a command of the DevTools protocol.
    pub fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// What the page said on its console: faults, and what its policy forbade.
    pub fn console(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().cloned().unwrap_or_default();
        entries.iter().map(|entry| entry["message"].to_string()).collect()
    }

    /// What is seen, as a PNG. With `GRAPNEL_SCREENSHOTS` set to a folder it is also kept there.
    ///
    /// # Panics
    /// If the folder can't be written.
    pub fn screenshot(&self, name: &str) -> Vec<u8> {
        let value = value_of("/screenshot", self.agent.get(format!("{}/screenshot", self.session)).call());
        let text = value.as_str().expect("the image is text");
        let image = data_encoding::BASE64.decode(text.as_bytes()).expect("base64");
        if let Some(folder) = std::env::var_os("GRAPNEL_SCREENSHOTS") {
            let path = Path::new(&folder).join(name).with_extension("png");
            std::fs::write(path, &image).expect("the folder for screenshots can be written");
        }
        image
    }
}
