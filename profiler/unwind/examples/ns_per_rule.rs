//! What a rule for a new pc costs: by a quick look, and by gimli.
//!
//! `cargo run --release -p grapnel-unwind --example ns_per_rule -- /lib/x86_64-linux-gnu/libLLVM-14.so.1 ...`
//!
//! Each function of the libraries is asked about once in each pass, in an order of its own, so that little is in the
//! processor's caches. Cold passes empty these ahead of each question.

mod loaded;

use gimli::{BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, NativeEndian, UnwindSection};
use grapnel_unwind::CfiScratch;
use loaded::Loaded;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// An address in the middle of each function.
fn functions(module: &Loaded) -> Option<Vec<u64>> {
    const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    let header = module.phdrs.iter().find(|h| h.p_type == PT_GNU_EH_FRAME)?;
    let start = module.bias + header.p_vaddr;
    let segment = module.phdrs.iter().find(|h| {
        h.p_type == libc::PT_LOAD && (h.p_vaddr..h.p_vaddr + h.p_filesz).contains(&header.p_vaddr)
    })?;
    let base = module.bias + segment.p_vaddr;
    // SAFETY: mapped, as the module's headers say.
    let bytes = unsafe { std::slice::from_raw_parts(base as *const u8, segment.p_filesz as usize) };
    let bases = BaseAddresses::default().set_eh_frame_hdr(start);
    let header =
        EhFrameHdr::new(bytes.get((start - base) as usize..)?, NativeEndian).parse(&bases, 8).ok()?;
    let eh_frame = header.eh_frame_ptr().direct().ok()?;
    let frames = bytes.get(usize::try_from(eh_frame.checked_sub(base)?).ok()?..)?;
    let mut section = EhFrame::new(frames, NativeEndian);
    section.set_address_size(8);
    let bases = bases.set_eh_frame(eh_frame);
    let (mut entries, mut functions) = (section.entries(&bases), Vec::new());
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Fde(fde) = entry
            && let Ok(fde) = fde.parse(EhFrame::cie_from_offset)
        {
            functions.push(fde.initial_address() + fde.len() / 2);
        }
    }
    Some(functions)
}

/// The median of a question's nanoseconds, less what the clock takes, and the mean.
fn measure(pcs: &[u64], cold: Option<&mut [u64]>, mut ask: impl FnMut(u64)) -> (f64, f64) {
    let start = Instant::now();
    if let Some(memory) = cold {
        let mut times: Vec<Duration> = Vec::new();
        for pc in pcs {
            for word in memory.iter_mut().step_by(8) {
                *word = word.wrapping_add(*pc);
            }
            let start = Instant::now();
            ask(*pc);
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let mean = times.iter().sum::<Duration>().as_nanos() as f64 / times.len().max(1) as f64;
        return (times[times.len() / 2].as_nanos() as f64, mean);
    }
    for pc in pcs {
        ask(*pc);
    }
    let mean = start.elapsed().as_nanos() as f64 / pcs.len().max(1) as f64;
    (mean, mean)
}

fn main() {
    let (list, table) = loaded::from_arguments();
    let mut scratch = CfiScratch::new();
    let mut memory = vec![1u64; 6 << 20];
    let mut random = fastrand::Rng::with_seed(1);
    for module in &list {
        let Some(mut pcs) = functions(module) else { continue };
        random.shuffle(&mut pcs);
        let some = &pcs[..pcs.len().min(2000)];
        println!("{} functions of {}", pcs.len(), module.name);
        for _ in 0..3 {
            let (quick, _) = measure(&pcs, None, |pc| _ = black_box(table.quick_rule(pc, true)));
            let (whole, _) = measure(&pcs, None, |pc| _ = black_box(table.rule(&mut scratch, pc, true)));
            println!("  {quick:>7.0} ns quick, {whole:>7.0} ns by gimli");
        }
        let (quick, mean) = measure(some, Some(&mut memory), |pc| _ = black_box(table.quick_rule(pc, true)));
        println!("  {quick:>7.0} ns quick, cold (mean {mean:.0})");
        let (whole, mean) =
            measure(some, Some(&mut memory), |pc| _ = black_box(table.rule(&mut scratch, pc, true)));
        println!("  {whole:>7.0} ns by gimli, cold (mean {mean:.0})");
    }
}
