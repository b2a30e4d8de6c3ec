//! Gives the shared library the name by which programs ask for it at run time.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // While the major version is 0, each minor one may break what was linked to the one before.
    let version = |part: &str| std::env::var(format!("CARGO_PKG_VERSION_{part}")).expect("cargo sets it");
    let abi = match version("MAJOR").as_str() {
        "0" => format!("0.{}", version("MINOR")),
        major => major.to_owned(),
    };
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgrapnel_hook.so.{abi}");
    // The handler of a signal may be called, and a hooked function led through the library's code, at any later time. So
    // `dlclose` leaves it in memory. What links the static library needs the same (grapnel-hook.pc.in).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
