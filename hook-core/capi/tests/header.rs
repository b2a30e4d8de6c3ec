//! The header is what the sources say. `GRAPNEL_BLESS=1` writes what they say into it.

use std::{env, fs, path::Path};

use similar::TextDiff;

#[test]
fn the_header_is_what_the_sources_say() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = package.join("include/grapnel_hook.h");
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::generate_with_config(package, config).unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    if env::var_os("GRAPNEL_BLESS").is_some() {
        fs::write(&header, made).unwrap();
        return;
    }
    let there = fs::read_to_string(&header).unwrap();
    let diff = TextDiff::from_lines(&there, &made);
    let diff = diff.unified_diff().header("include/grapnel_hook.h", "the sources").to_string();
    assert!(diff.is_empty(), "{diff}set GRAPNEL_BLESS=1 to accept it");
}
