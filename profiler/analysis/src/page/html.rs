//! The page itself: markup, style, script, data.

use data_encoding::BASE64;
use sha2::{Digest, Sha256};
use std::io::{self, Write};

const STYLE: &str = include_str!("assets/page.css");
const BODY: &str = include_str!("assets/body.html");

/// In the order in which they need each other. They share one scope.
const SCRIPTS: [&str; 18] = [
    include_str!("assets/inflate.js"),
    include_str!("assets/words.js"),
    include_str!("assets/names.js"),
    include_str!("assets/dom.js"),
    include_str!("assets/model.js"),
    include_str!("assets/figures.js"),
    include_str!("assets/state.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/calls.js"),
    include_str!("assets/flame.js"),
    include_str!("assets/tables.js"),
    include_str!("assets/sizes.js"),
    include_str!("assets/closer.js"),
    include_str!("assets/compare.js"),
    include_str!("assets/changes.js"),
    include_str!("assets/others.js"),
    include_str!("assets/leaks.js"),
    include_str!("assets/main.js"),
];

/// Writes a page with the data of a recording, and perhaps of another to compare it with. One that is `live` may ask its
/// server for more.
pub(super) fn write(out: &mut impl Write, recordings: &[Vec<u8>], live: bool) -> io::Result<()> {
    let script = format!("(() => {{\n\"use strict\";\n{}}})();\n", SCRIPTS.concat());
    let checksum = |text: &str| BASE64.encode(&Sha256::digest(text.as_bytes()));
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\"{}>\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{}'; \
         style-src 'sha256-{}'{}; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Grapnel</title>",
        if live { " data-live" } else { "" },
        checksum(&script),
        checksum(STYLE),
        if live { "; connect-src 'self'" } else { "" },
    )?;
    write!(out, "<style>{STYLE}</style>\n</head>\n<body>\n{BODY}")?;
    for data in recordings {
        // Base64 has no character that means anything in HTML.
        writeln!(
            out,
            "<script type=\"application/octet-stream\" class=\"recording\">{}</script>",
            BASE64.encode(data)
        )?;
    }
    write!(out, "<script>{script}</script>\n</body>\n</html>\n")?;
    out.flush()
}
