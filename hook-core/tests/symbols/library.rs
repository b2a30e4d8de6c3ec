//! Libraries that the tests build, change and load.

use std::{
    ffi::CString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use grapnel_hook::module::Module;

use crate::find;

/// A library in a folder of its own.
pub(crate) struct Library {
    pub(crate) path: PathBuf,
}

pub(crate) fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect(program);
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn source(name: &str) -> String {
    format!("{}/tests/symbols/{name}", env!("CARGO_MANIFEST_DIR"))
}

impl Library {
    /// Builds one in an empty folder of this name.
    pub(crate) fn build(folder: &str, flags: &[&str]) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("symbols").join(folder);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("libfunctions.so");
        let (first, second) = (source("library.c"), source("twin.c"));
        let mut arguments =
            vec!["-O1", "-g", "-fPIC", "-shared", "-Wl,-soname,libfunctions.so.1", &first, &second];
        arguments.extend(flags);
        arguments.extend(["-o", path.to_str().unwrap()]);
        run("cc", &arguments);
        Self { path }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.path.parent().unwrap()
    }

    pub(crate) fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Moves what the library doesn't need to run to another file.
    pub(crate) fn split(&self, debug: &Path) {
        fs::create_dir_all(debug.parent().unwrap()).unwrap();
        run("objcopy", &["--only-keep-debug", self.text(), debug.to_str().unwrap()]);
        run("strip", &["--strip-unneeded", self.text()]);
    }

    /// Names a debug file, with its checksum.
    pub(crate) fn link(&self, debug: &Path) {
        run("objcopy", &[&format!("--add-gnu-debuglink={}", debug.display()), self.text()]);
    }

    /// Leaves the functions that aren't exported compressed in the library, as distributions do.
    pub(crate) fn compress(&self, compressor: &[&str]) {
        let mini = self.folder().join("mini");
        let mini = mini.to_str().unwrap();
        run("objcopy", &["--only-keep-debug", self.text(), mini]);
        run(
            "objcopy",
            &[
                "-S",
                "--remove-section",
                ".gdb_index",
                "--remove-section",
                ".comment",
                "--keep-symbol=inside",
                "--keep-symbol=twin",
                mini,
            ],
        );
        run(compressor[0], &[&compressor[1..], &[mini]].concat());
        run("strip", &["--strip-unneeded", self.text()]);
        run("objcopy", &[&format!("--add-section=.gnu_debugdata={mini}.xz"), self.text()]);
    }

    /// Loads it for good.
    pub(crate) fn load(&self) -> Module {
        let name = CString::new(self.text()).unwrap();
        // SAFETY: the library has no constructors.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", self.text());
        find::modules().into_iter().find(|module| module.name() == self.text().as_bytes()).unwrap()
    }

    /// What the library itself says of an address that isn't exported.
    pub(crate) fn address_of_inside(&self, module: &Module) -> usize {
        let symbol = grapnel_hook::symbol::find(module, b"address_of_inside").unwrap();
        // SAFETY: the function has this type.
        let function: extern "C" fn() -> usize = unsafe { std::mem::transmute(symbol.pointer()) };
        function()
    }

    /// Puts another file in its place, as package managers do: what is mapped stays as it is.
    pub(crate) fn replace(&self, bytes: &[u8]) {
        let new = self.folder().join("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(&new, &self.path).unwrap();
    }
}
