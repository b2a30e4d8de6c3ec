//! Profiles for engines that keep those of a fleet, which are sent to them in turn while a process runs.
//!
//! Each has four figures of a stack, as Go's heap profiles: blocks and bytes that it allocated, and those of them that are
//! live. What is live is that of the moment. What was allocated is counted since the process began, or since the last
//! profile that an engine has ([`Known`]), as the engine adds them up or not.
//!
//! A profile is bounded, by the least that engines take when nobody has told them otherwise: of more stacks than [`MOST`],
//! and of what would have more than [`LARGEST`] bytes, the smallest are added up in one that says so. So no figure is lost.

use super::otlp;
use super::pprof::{GO_TYPES, OTHERS, When, compress, period, profile, signed};
use super::profile::Profile;
use crate::Analysis;
use crate::sites::Site;
use crate::symbols::Symbols;
use prost::Message;
use std::cmp::Reverse;
use std::collections::HashMap;

/// The most stacks of a profile.
pub const MOST: usize = 8192;
/// The most bytes of a profile before it is compressed. Those of an OTLP request are about as many.
pub const LARGEST: usize = 4 << 20;

/// What an engine knows of a process's allocations.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Of each stack, blocks and bytes.
    allocated: HashMap<u32, [i64; 2]>,
    /// Until when, since 1970.
    unix_ns: u64,
}

/// Who is profiled, as OTLP says it.
#[derive(Clone, Debug, Default)]
pub struct Resource {
    /// Attributes: names and values.
    pub attributes: Vec<(String, String)>,
    /// The process.
    pub pid: u32,
    /// The number of this profile: of 16 bytes, not all of them 0. One that comes again is the same profile.
    pub id: u128,
}

/// What is to be told of a process at a moment. Its stacks are those of one trace.
#[derive(Debug)]
pub struct Pushed<'a> {
    analysis: &'a Analysis,
    unix_ns: u64,
    /// What is told already; all that was allocated is told if this is `None`.
    before: Option<&'a Known>,
    /// By what they hold and allocated, most first, without those of which there is nothing to tell.
    samples: Vec<(u32, [i64; 4])>,
}

impl<'a> Pushed<'a> {
    /// What there is to tell of the moment that the analysis ends at, `unix_ns` since 1970.
    pub fn new(analysis: &'a Analysis, unix_ns: u64, before: Option<&'a Known>) -> Self {
        let sample = |site: &Site| {
            let [mut blocks, mut bytes] = allocated(site);
            if let Some([earlier_blocks, earlier_bytes]) =
                before.and_then(|known| known.allocated.get(&site.stack))
            {
                // Estimates may be rounded.
                blocks = blocks.saturating_sub(*earlier_blocks).max(0);
                bytes = bytes.saturating_sub(*earlier_bytes).max(0);
            }
            (site.stack, [blocks, bytes, signed(site.live_allocations), signed(site.live_bytes)])
        };
        let mut samples: Vec<_> = analysis
            .sites
            .iter()
            .map(sample)
            .filter(|(_, value)| value.iter().any(|&value| value != 0))
            .collect();
        samples.sort_by_key(|&(_, [blocks, bytes, live_blocks, live])| {
            Reverse((live.saturating_add(bytes), live_blocks.saturating_add(blocks)))
        });
        Self { analysis, unix_ns, before, samples }
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// What an engine knows that has this.
    pub fn known(&self) -> Known {
        let allocated = self.analysis.sites.iter().map(|site| (site.stack, allocated(site))).collect();
        Known { allocated, unix_ns: self.unix_ns }
    }

    /// In pprof's form, compressed by gzip. It has no duration: engines take it for a moment's.
    pub fn pprof(&self, symbols: &mut Symbols<'_>) -> Vec<u8> {
        let mut written = Vec::new();
        let profile = self.bounded(|samples| {
            let profile = self.profile(symbols, samples);
            (profile.encoded_len() <= LARGEST).then_some(profile)
        });
        // Writing into memory never fails.
        let _ = compress(&mut written, &profile);
        written
    }

    /// As a request of OTLP, not compressed: a profile for each figure, those of allocations over the time since what was
    /// told before.
    pub fn otlp(&self, symbols: &mut Symbols<'_>, resource: &Resource) -> Vec<u8> {
        let started = self.analysis.process.started_unix_ns;
        let since = self.before.map_or(started, |known| known.unix_ns).min(self.unix_ns);
        let request = self.bounded(|samples| {
            let profile = self.profile(symbols, samples);
            let request = otlp::request(&profile, resource, (since, self.unix_ns));
            (request.encoded_len() <= LARGEST).then_some(request)
        });
        request.encode_to_vec()
    }

    /// What is made of as many samples as it takes; the others are added up in one.
    fn bounded<T>(&self, mut made: impl FnMut(Vec<(u32, [i64; 4])>) -> Option<T>) -> T
    where
        T: Default,
    {
        let mut most = MOST;
        loop {
            let (told, rest) = self.samples.split_at(most.min(self.samples.len()));
            let mut samples = told.to_vec();
            if !rest.is_empty() {
                let sum =
                    |at: usize| rest.iter().fold(0_i64, |sum, (_, value)| sum.saturating_add(value[at]));
                samples.push((OTHERS, std::array::from_fn(sum)));
            }
            if let Some(made) = made(samples) {
                return made;
            }
            if most == 0 {
                return T::default();
            }
            most = most.min(self.samples.len()) / 2;
        }
    }

    fn profile(&self, symbols: &mut Symbols<'_>, samples: Vec<(u32, [i64; 4])>) -> Profile {
        let samples = samples.into_iter().map(|(stack, value)| (stack, value.to_vec()));
        let when = When { unix_ns: self.unix_ns, duration_ns: 0, period: Some(period(self.analysis)) };
        profile(self.analysis, symbols, (GO_TYPES, "inuse_space"), samples, when)
    }
}

fn allocated(site: &Site) -> [i64; 2] {
    [signed(site.allocations), signed(site.allocated_bytes)]
}

/// How many profiles of an OTLP request its answer says were not taken, and why; `None` if all were.
pub fn otlp_rejected(answer: &[u8]) -> Option<(u64, String)> {
    otlp::rejected(answer)
}
