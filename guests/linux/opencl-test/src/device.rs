// UNSAFETY: kernels get their arguments by number, and what a kernel does with a buffer the compiler does not know.
//! A device of OpenCL with our kernels built for it.
#![expect(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_ALL, Device, get_all_devices};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::{Buffer, CL_MEM_READ_WRITE, Image};
use opencl3::program::Program;
use opencl3::types::{CL_BLOCKING, cl_image_desc, cl_image_format};

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

/// An image, and what a texel of it is: numbers of OpenCL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Kind of the image, such as `CL_MEM_OBJECT_IMAGE2D`.
    pub(crate) kind: u32,
    /// Order of the components.
    pub(crate) order: u32,
    /// Type of a component.
    pub(crate) component: u32,
    /// Bytes of a texel.
    pub(crate) texel: usize,
    /// Texels, lines, and slices or layers.
    pub(crate) size: [usize; 3],
}

impl Shape {
    /// Bytes of the whole image in client memory, without gaps.
    pub(crate) fn bytes(&self) -> usize {
        self.size.iter().product::<usize>() * self.texel
    }
}

/// A box within an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) origin: [usize; 3],
    pub(crate) size: [usize; 3],
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

    /// Fills `size` bytes from `offset` on of a buffer with this content; the whole buffer afterwards.
    pub(crate) fn fill_buffer(
        &self,
        content: &[u8],
        pattern: &[u8],
        offset: usize,
        size: usize,
    ) -> Result<Vec<u8>> {
        ensure!(offset + size <= content.len(), "a fill beyond the buffer");
        let mut found = vec![0; content.len()];
        // SAFETY: without a flag that would use it the pointer may be null. The slices have as many bytes as the buffer;
        // their transfers are blocking, so they live longer. OpenCL copies the pattern before the call ends.
        unsafe {
            let buffer = Buffer::create(&self.context, CL_MEM_READ_WRITE, content.len(), ptr::null_mut());
            let mut buffer = buffer.context("no buffer")?;
            self.queue
                .enqueue_write_buffer(&mut buffer, CL_BLOCKING, 0, content, &[])
                .context("writing the buffer")?;
            self.queue
                .enqueue_fill_buffer(&mut buffer, pattern, offset, size, &[])
                .context("filling the buffer")?;
            self.queue
                .enqueue_read_buffer(&buffer, CL_BLOCKING, 0, &mut found, &[])
                .context("reading the buffer")?;
        }
        Ok(found)
    }

    /// Fills a region of an image with this content with one color; the whole image afterwards.
    pub(crate) fn fill_image(
        &self,
        shape: &Shape,
        content: &mut [u8],
        color: [u32; 4],
        region: &Region,
    ) -> Result<Vec<u8>> {
        ensure!(content.len() == shape.bytes(), "the content is no whole image");
        let [width, height, depth] = shape.size;
        let format = cl_image_format {
            image_channel_order: shape.order,
            image_channel_data_type: shape.component,
        };
        // SAFETY: all zeros are a description without a buffer.
        let mut description: cl_image_desc = unsafe { std::mem::zeroed() };
        description.image_type = shape.kind;
        description.image_width = width;
        description.image_height = height;
        description.image_depth = depth;
        description.image_array_size = depth;
        let mut found = vec![0xa5_u8; content.len()];
        let start = [0; 3];
        // SAFETY: origins and sizes are three numbers each, a color is four; without a flag that would use it the pointer
        // may be null. The slices have as many bytes as the image; their transfers are blocking, so they live longer.
        unsafe {
            let image = Image::create(
                &self.context,
                CL_MEM_READ_WRITE,
                &raw const format,
                &raw const description,
                ptr::null_mut(),
            );
            let mut image = image.context("no image")?;
            self.queue
                .enqueue_write_image(
                    &mut image,
                    CL_BLOCKING,
                    start.as_ptr(),
                    shape.size.as_ptr(),
                    0,
                    0,
                    content.as_mut_ptr().cast(),
                    &[],
                )
                .context("writing the image")?;
            let color = color.as_ptr().cast::<c_void>();
            let (origin, size) = (region.origin.as_ptr(), region.size.as_ptr());
            self.queue
                .enqueue_fill_image(&mut image, color, origin, size, &[])
                .context("filling the image")?;
            self.queue
                .enqueue_read_image(
                    &image,
                    CL_BLOCKING,
                    start.as_ptr(),
                    shape.size.as_ptr(),
                    0,
                    0,
                    found.as_mut_ptr().cast(),
                    &[],
                )
                .context("reading the image")?;
        }
        Ok(found)
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
