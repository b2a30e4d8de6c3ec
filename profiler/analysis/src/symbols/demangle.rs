//! Mangled names to the names that people wrote.

use super::packs::without_empty_packs;
use core::fmt::Write;
use cpp_demangle::{DemangleOptions, Symbol};

/// A demangled name can grow exponentially in its mangled one; none that a person reads is longer.
const MAX_NAME: usize = 16 << 10;

/// Whether a name is mangled by a scheme that [`demangle`] knows.
pub(crate) fn is_mangled(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("_R")
}

/// The name as it stands in the source, for C++ with parameters and without return type, for Rust without
/// the hash. Names of other languages come back as they are, except for a symbol version (`@GLIBC_2.2.5`).
pub(crate) fn demangle(name: &str) -> String {
    let name = match name.find('@') {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    };
    // Rust first: its legacy names are also well-formed C++ ones.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let mut out = Limited::default();
        if write!(out, "{rust:#}").is_ok() {
            return out.0;
        }
    }
    if name.starts_with("_Z")
        && let Ok(symbol) = Symbol::new(name)
    {
        let mut out = Limited::default();
        if symbol.structured_demangle(&mut out, &DemangleOptions::new().no_return_type()).is_ok() {
            return without_empty_packs(out.0);
        }
    }
    name.to_owned()
}

#[derive(Default)]
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(core::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_reads_as_written() {
        for (mangled, name) in [
            ("main", "main"),
            ("_start", "_start"),
            ("_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE", "core::fmt::Write::write_fmt"),
            ("_RNvCskwGfYPst2Cb_3foo16example_function", "foo::example_function"),
            ("_ZN5store6Bucket4growEm", "store::Bucket::grow(unsigned long)"),
            (
                "_ZN12_GLOBAL__N_15leakyEi.constprop.0",
                "(anonymous namespace)::leaky(int) [clone .constprop.0]",
            ),
            (
                "_ZSt11make_uniqueI5OrderJEENSt8__detail9_MakeUniqIT_E15__single_objectEDpOT0_",
                "std::make_unique<Order>()",
            ),
            ("_Znwm@@GLIBCXX_3.4", "operator new(unsigned long)"),
            ("_Znot mangled", "_Znot mangled"),
            ("@", "@"),
            ("", ""),
        ] {
            assert_eq!(demangle(mangled), name);
        }
    }
}
