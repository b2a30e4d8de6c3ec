//! `cargo bench -p grapnel-benches`: the relocator's steps on 200 real functions of each instruction set.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use grapnel_benches::relocate::{Step, Subject};
use grapnel_relocator::Isa;

fn steps(criterion: &mut Criterion) {
    for &isa in Isa::ALL {
        let subject = Subject::new(isa);
        let mut group = criterion.benchmark_group(isa.name());
        group.throughput(Throughput::Elements(subject.taken.len() as u64));
        for step in Step::ALL.into_iter().filter(|step| step.applies(isa)) {
            group.bench_function(step.name(), |bencher| bencher.iter(|| subject.pass(step)));
        }
        group.finish();
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
