//! Builds the agent as a shared library of its own, in two forms, to be carried inside the command.
//!
//! Cargo has no stable way to depend on another package's shared library, so this calls cargo again, with a
//! target directory of its own below `OUT_DIR`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let root = manifest_dir.parent().ok_or("the crate lies in no workspace")?.to_owned();
    let out = PathBuf::from(env::var("OUT_DIR")?).join("agent");
    let target = env::var("TARGET")?;
    for part in [
        "arch",
        "relocator",
        "hook-core",
        "profiler/trace",
        "profiler/seccomp",
        "profiler/unwind",
        "profiler/agent",
    ] {
        println!("cargo::rerun-if-changed={}", root.join(part).join("src").display());
        println!("cargo::rerun-if-changed={}", root.join(part).join("Cargo.toml").display());
    }
    println!("cargo::rerun-if-changed={}", root.join("Cargo.lock").display());
    // The agent's profile is there.
    println!("cargo::rerun-if-changed={}", root.join("Cargo.toml").display());
    println!("cargo::rerun-if-changed=build.rs");

    build(&root, &out, &target, &PRELOADED)?;
    // On machines of 32 bits there is no attaching.
    if env::var("CARGO_CFG_TARGET_POINTER_WIDTH")? == "64" {
        build(&root, &out, &target, &ATTACHED)?;
    }
    Ok(())
}

/// A form of the agent.
struct Form {
    /// The variable that tells the command's source where it is.
    variable: &'static str,
    file: &'static str,
    options: &'static [&'static str],
}

/// For processes into which the dynamic linker loads it.
const PRELOADED: Form = Form {
    variable: "GRAPNEL_AGENT",
    file: "libgrapnel_agent.so",
    options: &["-Clink-arg=-Wl,-z,initfirst,-z,now,-z,nodelete,--gc-sections"],
};

/// For processes that run already: it asks no other object for anything.
const ATTACHED: Form = Form {
    variable: "GRAPNEL_AGENT_ATTACHED",
    file: "libgrapnel_agent_attached.so",
    options: &["-Clink-arg=-Wl,-z,now,--gc-sections,--no-undefined", "--cfg", "grapnel_attached"],
};

fn build(root: &Path, out: &Path, target: &str, form: &Form) -> Result<(), Box<dyn Error>> {
    let mut command = Command::new(env::var("CARGO")?);
    command
        .current_dir(root)
        .args(["rustc", "--profile", "agent", "--locked", "--package", "grapnel-agent"])
        .args(["--lib", "--crate-type", "cdylib"])
        .args(["--target", target, "--target-dir"])
        .arg(out)
        .arg("--")
        .args(form.options)
        .arg("-Clink-arg=-Wl,-soname,libgrapnel_agent.so")
        // Panic handler, allocator, constructor; a feature would reach the agent as a crate of the workspace too.
        .args(["--cfg", "grapnel_cdylib"])
        // Thread-local access from assembly is position-independent; nothing else needs this to be said.
        .args(["-Crelocation-model=pic", "-Cforce-frame-pointers=no"]);
    // What the outer cargo or clippy set for its own compiler runs must not reach this one.
    for variable in
        ["RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTDOCFLAGS"]
    {
        command.env_remove(variable);
    }
    let status = command.status()?;
    if !status.success() {
        return Err(format!("building the agent failed: {status}").into());
    }
    let built = out.join(target).join("agent").join("libgrapnel_agent.so");
    if !built.is_file() {
        return Err(format!("the agent was built, but {} is not there", built.display()).into());
    }
    // The next form is built in the same place.
    let agent = out.join(form.file);
    std::fs::copy(&built, &agent)?;
    println!("cargo::rustc-env={}={}", form.variable, agent.display());
    Ok(())
}
