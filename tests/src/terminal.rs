//! A real terminal, by tmux: what is typed, and what a person sees.

use crate::going::until;
use crate::programs;
use crate::run::temporary_dir;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// A terminal with a shell in it, in a server of its own.
#[derive(Debug)]
pub struct Terminal {
    /// Where the shell is. `grapnel` is in its path.
    pub dir: TempDir,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

impl Terminal {
    /// A terminal of this size. `runtime` is where recordings are looked for.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(width: u16, height: u16, runtime: &Path) -> Self {
        let terminal = Self { dir: temporary_dir() };
        let dir = terminal.dir.path();
        std::os::unix::fs::symlink(programs::grapnel(), dir.join("grapnel")).unwrap();
        let (width, height) = (width.to_string(), height.to_string());
        let dir = dir.to_str().unwrap();
        let shell = format!(
            "env PATH={dir}:\"$PATH\" XDG_RUNTIME_DIR={} PS1='$ ' LC_ALL=C.UTF-8 HISTFILE= bash --norc --noprofile -i",
            runtime.display()
        );
        terminal.done(&[
            "-u",
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &width,
            "-y",
            &height,
            "-c",
            dir,
            &shell,
        ]);
        terminal.shows("$");
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        Command::new("tmux")
            .arg("-S")
            .arg(self.dir.path().join("tmux"))
            .args(arguments)
            .env_remove("TMUX")
            .output()
            .unwrap()
    }

    /// Has tmux do something.
    ///
    /// # Panics
    /// If it can't.
    pub fn done(&self, arguments: &[&str]) -> String {
        let output = self.tmux(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types keys, by tmux's names of them.
    pub fn keys(&self, keys: &[&str]) {
        self.done(&[&["send-keys"], keys].concat());
    }

    /// Types a line.
    pub fn line(&self, line: &str) {
        self.done(&["send-keys", "-l", line]);
        self.keys(&["Enter"]);
    }

    /// What is to be seen, line by line.
    pub fn screen(&self) -> Vec<String> {
        self.done(&["capture-pane", "-p"]).lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// The same with its colours and such, as escape sequences.
    pub fn styled(&self) -> String {
        self.done(&["capture-pane", "-p", "-e"])
    }

    /// Waits until what is to be seen is as it should be and drawn to its end, and returns it.
    ///
    /// # Panics
    /// If it never is.
    pub fn until(&self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        let mut last = Vec::new();
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(what, || {
                last = self.screen();
                is_so(&last).then_some(())
            })
        }));
        assert!(found.is_ok(), "{what} is not to be seen:\n{}", last.join("\n"));
        // It may have been seen while it was drawn. What never rests is taken as it is.
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(10));
            let next = self.screen();
            if next == last || !is_so(&next) {
                break;
            }
            last = next;
        }
        last
    }

    /// Waits until a text is to be seen.
    pub fn shows(&self, text: &str) -> Vec<String> {
        self.until(text, |lines| lines.iter().any(|line| line.contains(text)))
    }

    /// Whether a program has taken the screen, and whether the cursor is hidden.
    pub fn taken(&self) -> (bool, bool) {
        let facts = self.done(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        (facts.starts_with('1'), facts.trim_end().ends_with('0'))
    }

    /// The terminal's modes, as `stty` has them: by the kernel, past whoever uses it.
    pub fn modes(&self) -> String {
        let device = self.done(&["display-message", "-p", "#{pane_tty}"]);
        let output = Command::new("stty").args(["-g", "-F", device.trim_end()]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes it another size.
    pub fn resize(&self, width: u16, height: u16) {
        self.done(&["resize-window", "-x", &width.to_string(), "-y", &height.to_string()]);
    }
}
