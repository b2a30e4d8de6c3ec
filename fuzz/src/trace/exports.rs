//! What other tools are given of a trace.

use std::io;

use grapnel_analysis::{
    Analysis, analyse,
    export::{self, Format, Measure},
    import::heaptrack::import,
};
use grapnel_trace::reader::Reader;

use super::{is_json, is_text, with_symbols};

const FORMATS: [Format; 12] = [
    Format::Collapsed,
    Format::Svg,
    Format::Pprof,
    Format::Speedscope,
    Format::Csv,
    Format::Heaptrack,
    Format::Massif,
    Format::Dhat,
    Format::Firefox,
    Format::Android,
    Format::ParquetSites,
    Format::ParquetEvents,
];

pub(super) fn all(analysis: &Analysis, trace: &[u8]) {
    for format in FORMATS {
        let mut out = Vec::new();
        let again = || Reader::new(trace).map_err(io::Error::other);
        let what = (format, Measure::Allocations);
        match with_symbols(|symbols| export::write(&mut out, analysis, symbols, what, again)) {
            Ok(()) => check(format, &out, analysis),
            // Of nothing there is no flame graph, and of a sample there are no single blocks.
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

fn check(format: Format, out: &[u8], analysis: &Analysis) {
    match format {
        Format::Collapsed => {
            let figures = is_text(out).lines().map(|line| {
                let (_, figure) = line.rsplit_once(' ').expect("a figure behind the frames");
                figure.parse::<u64>().expect("a figure is a number")
            });
            let sum = figures.fold(0_u64, u64::saturating_add);
            let sites = analysis.sites.iter();
            assert_eq!(sum, sites.fold(0_u64, |sum, site| sum.saturating_add(site.allocations)));
        }
        Format::Speedscope | Format::Dhat | Format::Firefox => drop(is_json(out)),
        Format::Csv => {
            let mut lines = 0;
            let mut is_quoted = false;
            for &byte in is_text(out).as_bytes() {
                is_quoted ^= byte == b'"';
                lines += usize::from(byte == b'\n' && !is_quoted);
            }
            assert_eq!(lines, 1 + analysis.sites.len(), "a line for each site, and one of names");
        }
        // With a byte of 4 and one of 0 for Parquet's and pprof's own readers, of which the ordinary tests have some.
        Format::ParquetSites | Format::ParquetEvents => {
            assert!(out.starts_with(b"PAR1") && out.ends_with(b"PAR1"));
        }
        Format::Heaptrack => {
            is_text(out);
            let mut back = Vec::new();
            let imported = import(out, &mut back).expect("what was exported can be imported");
            assert_eq!(imported.damage, None);
            let again = analyse(Reader::new(&*back).expect("what was imported can be read"));
            assert_eq!(again.totals.allocations, imported.allocations);
        }
        _ => assert!(!out.is_empty()),
    }
}
