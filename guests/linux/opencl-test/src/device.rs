// UNSAFETY: kernels get their arguments by number, and what a kernel does with a buffer the compiler does not know.
//! A device of OpenCL with our kernels built for it.
#![expect(unsafe_code)]

use std::ptr;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_ALL, Device, get_all_devices};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::{Buffer, CL_MEM_READ_WRITE};
use opencl3::program::Program;
use opencl3::types::CL_BLOCKING;

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument<'a> {
    /// A buffer of words with this in it, whose words are read back when the kernel has ended.
    Words(&'a [u32]),
    /// A buffer of this many zeros, read back too.
    Zeros(usize),
    /// This many words that a group shares.
    Shared(usize),
    /// A 32-bit number, by value.
    Number(u32),
}

/// Numbers of invocations, in all and in a group, along x and y.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) all: [usize; 2],
    pub(crate) group: [usize; 2],
}

impl Range {
    /// Along x alone.
    pub(crate) const fn line(all: usize, group: usize) -> Self {
        Self {
            all: [all, 1],
            group: [group, 1],
        }
    }
}

/// A device of OpenCL: its name, its queue, and our kernels built for it.
pub(crate) struct Machine {
    name: String,
    program: Program,
    queue: CommandQueue,
    context: Context,
}

impl Machine {
    /// The first device whose name contains `wanted`, with the kernels of `source`.
    pub(crate) fn open(wanted: &str, source: &str) -> Result<Self> {
        let devices = get_all_devices(CL_DEVICE_TYPE_ALL).context("no platform of OpenCL")?;
        let mut names = Vec::new();
        for id in devices {
            let device = Device::new(id);
            let name = device.name().context("a device without a name")?;
            if name.contains(wanted) {
                let context = Context::from_device(&device).context("no context")?;
                let queue = CommandQueue::create_default_with_properties(&context, 0, 0)
                    .context("no command queue")?;
                let program = Program::create_and_build_from_source(&context, source, "")
                    .map_err(|log| anyhow!("the kernels cannot be built for {name}: {log}"))?;
                return Ok(Self {
                    name,
                    program,
                    queue,
                    context,
                });
            }
            names.push(name);
        }
        bail!("no device {wanted} among {names:?}");
    }

    /// Name of the device.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs a kernel; the words of its buffers afterwards, one after the other.
    pub(crate) fn run(&self, name: &str, arguments: &[Argument<'_>], range: Range) -> Result<Vec<u32>> {
        let kernel = Kernel::create(&self.program, name).with_context(|| format!("no kernel {name}"))?;
        let wanted = kernel.num_args().context("no number of arguments")?;
        ensure!(
            wanted as usize == arguments.len(),
            "kernel {name} takes {wanted} arguments"
        );
        let mut buffers = Vec::new();
        for argument in arguments {
            match argument {
                Argument::Words(words) => buffers.push((self.buffer(words)?, words.len())),
                Argument::Zeros(count) => buffers.push((self.buffer(&vec![0; *count])?, *count)),
                Argument::Shared(_) | Argument::Number(_) => {}
            }
        }
        let mut launch = ExecuteKernel::new(&kernel);
        let mut next = buffers.iter();
        for argument in arguments {
            // SAFETY: there are as many arguments as the kernel takes; that each is of the kind that the kernel declares
            // the runtime checks by its size, and all kernels are ours. Buffers live until the words are read.
            unsafe {
                match argument {
                    Argument::Words(_) | Argument::Zeros(_) => {
                        let (buffer, _) = next.next().context("a buffer for each")?;
                        launch.set_arg(buffer)
                    }
                    Argument::Shared(words) => launch.set_arg_local_buffer(words * 4),
                    Argument::Number(number) => launch.set_arg(number),
                };
            }
        }
        launch
            .set_global_work_sizes(&range.all)
            .set_local_work_sizes(&range.group);
        // SAFETY: the kernels stay within the buffers that the tests give them.
        unsafe { launch.enqueue_nd_range(&self.queue) }.with_context(|| format!("kernel {name}"))?;
        let mut all = Vec::new();
        for (buffer, count) in &buffers {
            let mut words = vec![0; *count];
            // SAFETY: as many words as the buffer has; blocking, so `words` lives longer than the transfer.
            unsafe {
                self.queue
                    .enqueue_read_buffer(buffer, CL_BLOCKING, 0, &mut words, &[])
            }
            .with_context(|| format!("reading what kernel {name} left"))?;
            all.append(&mut words);
        }
        Ok(all)
    }

    fn buffer(&self, words: &[u32]) -> Result<Buffer<u32>> {
        // SAFETY: without a flag that would use it the pointer may be null.
        let buffer =
            unsafe { Buffer::create(&self.context, CL_MEM_READ_WRITE, words.len(), ptr::null_mut()) };
        let mut buffer = buffer.context("no buffer")?;
        // SAFETY: as many words as the buffer has; blocking, so `words` lives longer than the transfer.
        unsafe {
            self.queue
                .enqueue_write_buffer(&mut buffer, CL_BLOCKING, 0, words, &[])
        }
        .context("filling a buffer")?;
        Ok(buffer)
    }
}
