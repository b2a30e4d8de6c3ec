//! The terminal: taken for a while, and given back however that ends.
//!
//! What was changed is undone in one place, [`give_back`], which may be called from anywhere and any number of times: by the
//! end of the view, by the hook for panics, by the thread that gets signals. From then on nothing more is drawn. For an end that
//! nobody is told of there is the [`guard`].

use super::guard;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::style::ResetColor;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::crossterm::{execute, terminal};
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whether the terminal is in our hands.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Held while a picture is written.
static DRAWING: Mutex<()> = Mutex::new(());
/// How long a picture that is under way is waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why there is no view.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ScreenError {
    /// Nobody sees it.
    #[error("standard output is no terminal; `grapnel top --once` prints one view of it")]
    NoTerminal,
    /// The terminal can't move its cursor.
    #[error(
        "the terminal is {0}, which can't show a view that changes; `grapnel top --once` prints one, or set TERM"
    )]
    Dumb(String),
    /// It can't be taken, or is gone.
    #[error("the terminal can't be used: {0}")]
    Terminal(io::Error),
}

/// Gives the terminal back as it was. If it is gone, there is nothing to give.
pub(super) fn give_back() {
    if !TAKEN.load(Ordering::Acquire) {
        return;
    }
    // Half a picture behind the last word would be a mess. Who fails in the midst of one waits in vain.
    let since = Instant::now();
    let mut lock = DRAWING.try_lock();
    while lock.is_err() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
        lock = DRAWING.try_lock();
    }
    if TAKEN.swap(false, Ordering::AcqRel) {
        // The modes first: these don't wait until the terminal takes what is written to it.
        let _ = terminal::disable_raw_mode();
        let _ = execute!(io::stdout(), ResetColor, Show, LeaveAlternateScreen);
        guard::given_back();
    }
}

fn take() -> io::Result<()> {
    guard::taken();
    terminal::enable_raw_mode().inspect_err(|_| guard::given_back())?;
    TAKEN.store(true, Ordering::Release);
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// What is written to the terminal: a picture at once, and nothing when it isn't ours any more.
#[derive(Debug, Default)]
struct Picture(Vec<u8>);

impl Write for Picture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _drawing = DRAWING.lock();
        let bytes = std::mem::take(&mut self.0);
        if !TAKEN.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()
    }
}

/// The terminal while it is ours.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Picture>>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When standard output is none, or one that can't do what is needed.
    pub(super) fn new() -> Result<Self, ScreenError> {
        if !io::stdout().is_terminal() {
            return Err(ScreenError::NoTerminal);
        }
        match std::env::var("TERM") {
            Ok(name) if name != "dumb" && !name.is_empty() => {}
            Ok(name) if name == "dumb" => return Err(ScreenError::Dumb("a dumb one".into())),
            _ => return Err(ScreenError::Dumb("of an unknown kind".into())),
        }
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
        let failed = |error| {
            give_back();
            ScreenError::Terminal(error)
        };
        take().map_err(failed)?;
        let terminal = Terminal::new(CrosstermBackend::new(Picture::default())).map_err(failed)?;
        Ok(Self { terminal })
    }

    /// Draws.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> Result<(), ScreenError> {
        self.terminal.draw(|frame| draw(frame.buffer_mut())).map_err(ScreenError::Terminal)?;
        Ok(())
    }

    /// Takes the terminal again after it was given back or somebody else had it, and draws on an empty one.
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn take_again(&mut self) -> Result<(), ScreenError> {
        // A shell may have changed its modes.
        let _ = terminal::disable_raw_mode();
        take().map_err(ScreenError::Terminal)?;
        self.forget()
    }

    /// Has all drawn anew, whatever is there now.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub(super) fn forget(&mut self) -> Result<(), ScreenError> {
        // `Terminal::clear` would ask the terminal where its cursor is, and who reads keys would get the answer.
        let size = self.terminal.size().map_err(ScreenError::Terminal)?;
        self.terminal.resize(size.into()).map_err(ScreenError::Terminal)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::style::Style;
    use std::path::Path;
    use std::process::Command;

    fn write(buffer: &mut Buffer, line: u16, text: &str) {
        buffer.set_string(0, line, text, Style::new());
    }

    fn drawn() -> Screen {
        let mut screen = Screen::new().unwrap();
        screen.draw(|buffer| write(buffer, 0, "drawn")).unwrap();
        screen
    }

    #[test]
    #[ignore = "takes the terminal that it runs in"]
    fn fails_while_it_draws() {
        let mut screen = drawn();
        let _ = screen.draw(|_| panic!("a fault while it draws"));
    }

    #[test]
    #[ignore = "takes the terminal that it runs in"]
    fn fails_beside_the_drawing() {
        let mut screen = drawn();
        assert!(std::thread::spawn(|| panic!("a fault beside it")).join().is_err());
        screen.draw(|buffer| write(buffer, 1, "drawn later")).unwrap();
    }

    fn tmux(dir: &Path, arguments: &[&str]) -> String {
        let socket = dir.join("tmux");
        let output = Command::new("tmux").arg("-S").arg(socket).args(arguments).env_remove("TMUX").output();
        String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
    }

    /// In a real terminal, with this same program.
    #[test]
    fn a_fault_gives_the_terminal_back() {
        for test in ["fails_while_it_draws", "fails_beside_the_drawing"] {
            let dir = tempfile::tempdir().unwrap();
            let file = |name: &str| dir.path().join(name).display().to_string();
            let script = format!(
                "stty -g >{}; RUST_BACKTRACE=0 {} --ignored --exact --nocapture top::screen::tests::{test}; stty -g >{}; echo done; exec sleep 60",
                file("before"),
                std::env::current_exe().unwrap().display(),
                file("after"),
            );
            tmux(dir.path(), &["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", &script]);
            let since = Instant::now();
            let mut seen = String::new();
            while !seen.contains("done") && since.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(20));
                seen = tmux(dir.path(), &["capture-pane", "-p"]);
            }
            let facts = tmux(dir.path(), &["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
            tmux(dir.path(), &["kill-server"]);
            assert!(seen.contains("a fault") && seen.contains("done") && !seen.contains("drawn"), "{seen}");
            assert_eq!(facts, "0 1\n", "{seen}");
            let modes = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert_eq!(modes("before"), modes("after"));
        }
    }
}
