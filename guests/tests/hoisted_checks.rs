//! Checks that are hoisted out of a loop, over a GPU that counts them and runs nothing.

use kernels::{Checked, CpuAccess, Gpu, Kernel as _, Launch, Noise, Srad, Stopped};

#[derive(Default)]
struct Counter {
    checks: u64,
    accesses: u64,
    launches: u64,
}

impl Gpu for Counter {
    fn address(&self, buffer: usize) -> u64 {
        (buffer as u64 + 1) << 32
    }

    fn launch(&mut self, _: &Launch<'_>) -> Result<(), Stopped> {
        self.launches += 1;
        Ok(())
    }

    fn load(&mut self, _: usize, _: usize, words: &mut [u32]) -> Result<(), Stopped> {
        self.accesses += 1;
        words.fill(1.0f32.to_bits());
        Ok(())
    }

    fn store(&mut self, _: usize, _: usize, _: &[u32]) -> Result<(), Stopped> {
        self.accesses += 1;
        Ok(())
    }

    fn check(&mut self, _: usize, _: CpuAccess) -> Result<(), Stopped> {
        self.checks += 1;
        Ok(())
    }
}

#[test]
fn loop_over_a_checked_buffer_checks_once() {
    let mut gpu = Counter::default();
    let mut buffer = Checked::new(&mut gpu, 0, CpuAccess::Read).unwrap();
    for first in 0..10 {
        buffer.load(first, &mut [0]).unwrap();
    }
    assert_eq!((gpu.checks, gpu.accesses), (1, 10));
    (0..10).for_each(|first| gpu.read(0, first, &mut [0]).unwrap());
    assert_eq!((gpu.checks, gpu.accesses), (11, 20));
}

#[test]
fn srad_checks_once_an_iteration_however_much_it_reads() {
    let mut gpu = Counter::default();
    Srad::new(64, 5, Noise::new(1)).run(&mut gpu).unwrap();
    assert_eq!((gpu.checks, gpu.launches), (1 + 5, 2 * 5));
    // 64 words at a time, once to store the image and five times to load it.
    assert_eq!(gpu.accesses, 6 * 64);
}
