//! How far a file has been read, as a bar on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

/// Short work needs no bar.
const PATIENCE: Duration = Duration::from_millis(500);

/// A file that shows how much of it was read. Where standard error is no terminal, nothing is shown.
pub(crate) struct Shown {
    file: File,
    start: std::time::Instant,
    len: u64,
    read: u64,
    bar: Option<ProgressBar>,
}

impl Shown {
    pub(crate) fn new(file: File) -> Self {
        // A pipe has no length: there is no bar then.
        let len = file.metadata().map_or(0, |facts| facts.len());
        Self { file, start: std::time::Instant::now(), len, read: 0, bar: None }
    }
}

impl Read for Shown {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(buffer)?;
        self.read += len as u64;
        if len == 0 {
            // The bar must not stand in the midst of what is said next.
            self.bar.take().inspect(ProgressBar::finish_and_clear);
        } else if let Some(bar) = &self.bar {
            bar.set_position(self.read);
        } else if self.len > 0 && self.start.elapsed() >= PATIENCE {
            let target = ProgressDrawTarget::stderr_with_hz(10);
            let bar = ProgressBar::with_draw_target(Some(self.len), target);
            let form = "{percent:>3}% of {total_bytes} read [{wide_bar}] {eta} left";
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style.progress_chars("=> "));
            }
            self.bar = Some(bar);
        }
        Ok(len)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.bar.take().inspect(ProgressBar::finish_and_clear);
    }
}
