//! Reads a trace: live set, sites, symbols, reports.
