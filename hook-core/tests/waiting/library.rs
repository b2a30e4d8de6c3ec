//! The libraries that come and go.

use std::{
    ffi::{CStr, CString},
    path::{Path, PathBuf},
};

use crate::cc;

/// Builds a library of this name and number.
pub(crate) fn build(name: &str, number: i32, flags: &[&str]) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("waiting");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("lib{name}.so"));
    let output = cc::command()
        .args(["-O2", "-fPIC", "-shared", "-Wall", "-Werror", &format!("-DNUMBER={number}")])
        .arg(format!("-Wl,-soname,lib{name}.so.1"))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/waiting/library.c"))
        .args(flags)
        .arg("-o")
        .arg(&path)
        .output()
        .expect("a C compiler is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

/// A library that is loaded.
pub(crate) struct Library(*mut libc::c_void);

impl Library {
    pub(crate) fn load(path: &Path) -> Self {
        Self::try_load(path).unwrap_or_else(|| panic!("{}", path.display()))
    }

    pub(crate) fn try_load(path: &Path) -> Option<Self> {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the constructor calls what the test hooks.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        (!handle.is_null()).then_some(Self(handle))
    }

    /// In a namespace of its own, with a libc of its own.
    pub(crate) fn load_apart(path: &Path) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: as above.
        let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", path.display());
        Self(handle)
    }

    pub(crate) fn at(&self, name: &CStr) -> usize {
        // SAFETY: the library is loaded.
        let at = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        at as usize
    }

    pub(crate) fn call(&self, name: &CStr, argument: i32) -> i32 {
        // SAFETY: the functions of the library take an integer or nothing, and return one.
        let function: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(self.at(name)) };
        function(argument)
    }

    /// What the constructor got from the hooked functions.
    pub(crate) fn constructor_saw(&self) -> [i32; 5] {
        [0, 1, 2, 3, 4].map(|i| self.call(c"constructor_saw", i))
    }

    pub(crate) fn unload(self) {
        // SAFETY: nothing of the library is used any more.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}
