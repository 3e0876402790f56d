//! The definitions of the GF100 hardware: registers, table entries, channel structures, methods.
//!
//! Shared by the software GPU, the mediator, guest drivers and tests. It holds no state and does no I/O. Every fact
//! names its source: *envytools* (`rnndb/*.xml`, `docs/hw/*.rst`), *nouveau* (Linux 6.12,
//! `drivers/gpu/drm/nouveau/nvkm/`), or NVIDIA's *open-gpu-doc* class headers (`cl906f.h` host, `cl90b5.h` copy,
//! `cl9039.h` M2MF). What only one source or an experiment tells is marked `unverified:`.
//!
//! * [`addr`]: the address spaces, each its own type
//! * [`bar`]: the memory BARs
//! * [`regs`]: the BAR0 register table and the registers' fields
//! * [`pte`]: page-directory and page-table entries, kinds
//! * [`instance`]: instance block (RAMFC, page directory pointer, engine contexts) and USERD
//! * [`gpfifo`], [`pushbuffer`], [`methods`]: what a channel fetches and executes
//! * [`surface`]: where the bytes of a block-linear surface lie
//! * [`texel`], [`texture`]: what texels are made of; headers of textures, samplers
//! * [`graphics`], [`target`], [`twod`], [`mme`]: methods of the classes on PGRAPH, and the macros that send them
//! * [`engine`], [`fault`]: engines and their bits, MMU fault records
//! * [`isa`]: machine code of the shader cores: decoder, disassembler, assembler
//! * [`board`], [`vbios`]: identity of the boards offered, and the image in their ROM
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "assembler"))]
extern crate alloc;

pub mod addr;
pub mod bar;
pub mod board;
pub mod engine;
pub mod fault;
pub mod gpfifo;
pub mod graphics;
pub mod instance;
pub mod isa;
pub mod methods;
pub mod mme;
pub mod pte;
pub mod pushbuffer;
pub mod regs;
pub mod surface;
pub mod target;
pub mod texel;
pub mod texture;
pub mod twod;
pub mod vbios;
