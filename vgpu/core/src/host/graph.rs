//! PGRAPH's driver: microcode for FECS and the GPCs, the golden image, and what a context's list of registers names.
//!
//! ```text
//! microcode given ─► started ─► image's size, TPCs ─► golden image made and read ─► up
//!      └── none: contexts begin as zeros (the software card takes those, a card switches none)
//! after a reset of PGRAPH: given and started again; nobody comes onto the engine before FECS answers
//! ```
//!
//! Sources: nouveau `gr/gf100.c`, `gr/ctxgf100.c`, `gr/fuc/hub.fuc`. unverified: all that a real card does of it.

use fermi_spec::addr::{FRAME, SMALL_PAGE, VramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::regs::falcon::{CONTROL_START, Caps, Falcon, FalconReg};
use fermi_spec::regs::fecs::{
    CONTEXT_BYTES, FECS_CAPS, FECS_CHANNEL_VALID, FECS_SWITCH_REQUEST, GPCCS_CAPS, fecs_nouveau,
};
use fermi_spec::regs::pgraph::{GPCS, METHOD_PORT_GO, POWER_MODE_BUSY, STATUS_COMMANDS, setup};
use fermi_spec::regs::{Bar0Reg, FecsReg, PgraphReg, PmcWord};
use serde::{Deserialize, Serialize};

use super::card::{Card, OwnTables};
use super::copy::VRAM_VA;
use super::lane::{Job, Late, Op, Tokens};
use super::microcode::{Microcode, MicrocodeError};
use crate::device::contexts::HOST_VA;
use crate::event::{Action, Actions, Token};
use crate::inspect::{Inspect, Tree};
use crate::reason::{CardOperation, StartFailure};

/// Pages of 128 KiB with what a VM's rendering goes through. The first has the page pool, the bundles and the list of registers, the
/// others the attributes.
pub(crate) const BUFFER_PAGES: usize = 4;
/// The same of the largest image that a card may ask for.
pub(crate) const IMAGE_PAGES_MAX: usize = 4;

/// Bytes of the arena that making a golden image takes for a while.
pub(crate) const SCRATCH_BYTES: u64 = IMAGE_PAGES_MAX as u64 * FRAME;

/// Bytes of the page pool, the bundles and, for a TPC, the attributes; and where the first page has them (nouveau `gr/ctxgf100.c`).
const POOL_BYTES: u32 = 0x8000;
const BUNDLE_AT: u32 = POOL_BYTES;
const BUNDLE_BYTES: u32 = 0x1800;
const ATTRIBUTE_BYTES: u32 = 0x20 * ATTRIBUTES_MAX;
const ATTRIBUTES_MAX: u32 = 0x324;
const ATTRIBUTES: u32 = 0x218;
/// Where the first page has the list of registers.
const LIST_AT: u64 = 0xc000;
/// TPCs whose attributes there is room for: no GF100 was sold with more.
const TPCS_MAX: u32 = ((BUFFER_PAGES as u64 - 1) * FRAME / ATTRIBUTE_BYTES as u64) as u32;

const _: () = assert!(TPCS_MAX == 15 && (BUNDLE_AT + BUNDLE_BYTES) as u64 <= LIST_AT);

/// How long FECS may take for its start or a command: what nouveau gives it.
const FECS_TIMEOUT_NS: u64 = 2_000_000_000;

/// Whether channels reach a page of the buffers without privilege: the attributes, as nouveau maps them.
pub(crate) fn is_open(page: usize) -> bool {
    page != 0
}

/// Stores that PGRAPH gets once: offset of the register, or what stands for it, and value.
pub type GraphStores = Vec<(u32, u32)>;

/// What PGRAPH is given before it switches contexts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GraphMicrocode {
    fecs: Microcode,
    gpccs: Microcode,
    lists: GraphLists,
}

/// The registers of a fresh context and of none, in the order in which they are written (nouveau `gf100_gr_load_sw` has the same four).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GraphLists {
    /// Registers that are no part of a context.
    pub non_context: GraphStores,
    /// Registers of a context.
    pub context: GraphStores,
    /// Internal commands: number and data.
    pub bundles: GraphStores,
    /// Methods: class and method as the method port takes them, and data.
    pub methods: GraphStores,
}

impl GraphMicrocode {
    /// Code and data of FECS and of the GPCs' falcons as in files: words, the low byte first; data with the lists of registers that a
    /// context saves.
    ///
    /// # Errors
    /// A file is empty, not whole words, or larger than the falcon's memory.
    pub fn new(fecs: [&[u8]; 2], gpccs: [&[u8]; 2], lists: GraphLists) -> Result<Self, MicrocodeError> {
        Ok(Self {
            fecs: Microcode::of(Caps::from_bits(FECS_CAPS), fecs)?,
            gpccs: Microcode::of(Caps::from_bits(GPCCS_CAPS), gpccs)?,
            lists,
        })
    }

    /// What stands for microcode where a software card asks for some: it runs none.
    pub fn for_software_card() -> Self {
        let words = Microcode::any();
        Self {
            fecs: words.clone(),
            gpccs: words,
            lists: GraphLists::default(),
        }
    }

    /// Gives PGRAPH its microcode and starts it. FECS answers in its first scratch word.
    fn start(&self) -> Vec<Op> {
        let mut ops = vec![Op::Write(PmcWord::PmcUnknown260.into(), 0)];
        ops.extend(self.fecs.upload(Falcon::Fecs));
        ops.extend(self.gpccs.upload(Falcon::Gpccs));
        ops.push(Op::Write(PmcWord::PmcUnknown260.into(), 1));
        ops.extend(self.lists.non_context.iter().map(|&(at, value)| store(at, value)));
        ops.extend([
            store(Falcon::Fecs.first() + FalconReg::BlockOnFifo.offset(), 0),
            Op::Write(FecsReg::FecsControl.into(), CONTROL_START),
        ]);
        ops
    }
}

fn store(at: u32, value: u32) -> Op {
    Op::Block(Bar::Bar0, at.into(), value.to_le_bytes().to_vec())
}

fn poll(reg: impl Into<Bar0Reg>, mask: u32, value: u32) -> Op {
    Op::Poll {
        reg: reg.into(),
        mask,
        value,
        timeout_ns: FECS_TIMEOUT_NS,
        late: Late::Fails,
    }
}

/// PGRAPH as the host drives it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Graph {
    microcode: Option<Box<GraphMicrocode>>,
    /// Pages of 128 KiB of an image.
    image_pages: usize,
    tpcs: [u32; GPCS as usize],
    /// The image of a context that nobody has used, without the zeros behind it.
    #[serde(with = "crate::hex")]
    golden: Vec<u8>,
    /// How often microcode was given again and has not answered.
    starting: u32,
    #[serde(skip)]
    making: Option<Making>,
}

/// The golden image, while it is made.
#[derive(Debug)]
struct Making {
    /// Where it is made.
    at: VramAddr,
    asked: Vec<(Token, Asked)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Bytes,
    Tpcs(u16),
    /// A page of 4 KiB of the image.
    Page(usize),
}

impl Default for Graph {
    fn default() -> Self {
        Self {
            microcode: None,
            image_pages: CONTEXT_BYTES.div_ceil(FRAME as u32) as usize,
            tpcs: [0; GPCS as usize],
            golden: Vec::new(),
            starting: 0,
            making: None,
        }
    }
}

impl Graph {
    /// PGRAPH of a card that was reset. With microcode, the golden image is made at `scratch`, where
    /// [`SCRATCH_BYTES`] of the arena are taken.
    pub(crate) fn new(microcode: Option<GraphMicrocode>, scratch: VramAddr) -> Self {
        Self {
            making: microcode.is_some().then_some(Making {
                at: scratch,
                asked: Vec::new(),
            }),
            microcode: microcode.map(Box::new),
            ..Self::default()
        }
    }

    /// Microcode is given and started, unless there is none.
    pub(crate) fn start(&self) -> Vec<Op> {
        self.microcode
            .as_ref()
            .map_or_else(Vec::new, |microcode| microcode.start())
    }

    pub(crate) fn has_microcode(&self) -> bool {
        self.microcode.is_some()
    }

    /// Microcode was given again, and has not answered: nobody may come onto PGRAPH.
    pub(crate) fn is_starting(&self) -> bool {
        self.starting != 0
    }

    /// It has answered once.
    pub(crate) fn started(&mut self) {
        self.starting = self.starting.saturating_sub(1);
    }

    /// FECS has started: asks what has to be known of it.
    fn ask(&mut self, tokens: &mut Tokens, actions: &mut Actions) {
        let Some(making) = &mut self.making else { return };
        let tpcs = (0..GPCS as u16).map(|gpc| (PgraphReg::GpcTpcs(gpc).into(), Asked::Tpcs(gpc)));
        let bytes: (Bar0Reg, Asked) = (FecsReg::FecsScratch(1).into(), Asked::Bytes);
        for (reg, what) in std::iter::once(bytes).chain(tpcs) {
            let token = tokens.next();
            making.asked.push((token, what));
            actions.push(Action::HostRead {
                token,
                bar: Bar::Bar0,
                offset: reg.offset().into(),
                bytes: 4,
            });
        }
    }

    fn image_bytes(&self) -> u64 {
        self.image_pages as u64 * FRAME
    }

    /// Pages of a VM's buffers: none where nobody names any.
    pub(crate) fn buffer_pages(&self) -> usize {
        if self.has_microcode() { BUFFER_PAGES } else { 0 }
    }

    /// How many pages an image has.
    pub(crate) fn image_pages(&self) -> usize {
        self.image_pages
    }

    /// Takes what FECS and the GPCs answered.
    fn known(&mut self, what: Asked, data: &[u8]) -> Result<(), StartFailure> {
        let word = u32::from_le_bytes(data.try_into().unwrap_or([0xff; 4]));
        match what {
            Asked::Bytes => {
                let pages = u64::from(word).div_ceil(FRAME) as usize;
                if !(1..=IMAGE_PAGES_MAX).contains(&pages) {
                    return Err(StartFailure::ContextBytes { bytes: word });
                }
                self.image_pages = pages;
            }
            Asked::Tpcs(gpc) => {
                self.tpcs[usize::from(gpc)] = word & 0xff;
                let tpcs = self.tpcs.iter().sum();
                if tpcs > TPCS_MAX {
                    return Err(StartFailure::Tpcs { tpcs });
                }
            }
            Asked::Page(page) => {
                let at = page * SMALL_PAGE as usize;
                if let Some(part) = self.golden.get_mut(at..at + data.len()) {
                    part.copy_from_slice(data);
                }
            }
        }
        Ok(())
    }

    /// Stores that make a golden image: a context of the broker's own channel is bound, set up, and saved.
    fn make(&self, own: &OwnTables, at: VramAddr, window: impl Fn(VramAddr) -> u64) -> Vec<Op> {
        let Some(microcode) = &self.microcode else {
            return Vec::new();
        };
        let pointer = window(own.instance) + Engine::Graph.context_offset();
        let va = VRAM_VA.0 + at.0;
        let block = FECS_CHANNEL_VALID | (own.instance.0 >> 12) as u32;
        let mut ops = power_up();
        ops.extend([
            Op::Block(Bar::Bar3, window(at), vec![0; self.image_bytes() as usize]),
            Op::Block(Bar::Bar3, pointer, context_pointer(va).to_vec()),
            Op::Write(FecsReg::FecsScratchClear(0).into(), fecs_nouveau::DONE),
            Op::Write(FecsReg::FecsData.into(), block),
            Op::Write(FecsReg::FecsCommand.into(), fecs_nouveau::SET_CHANNEL),
            poll(FecsReg::FecsScratch(0), fecs_nouveau::DONE, fecs_nouveau::DONE),
        ]);
        let lists = &microcode.lists;
        ops.extend(lists.context.iter().map(|&(at, value)| store(at, value)));
        ops.extend(self.list().into_iter().map(|(at, value)| store(at, value)));
        ops.push(poll(PgraphReg::GraphStatus, 1, 0));
        if !lists.bundles.is_empty() {
            ops.push(store(setup::COMMAND_CONTROL, setup::COMMANDS_ON));
            for &(command, data) in &lists.bundles {
                ops.extend([
                    store(setup::COMMAND_DATA, data),
                    store(setup::COMMAND, command),
                    poll(PgraphReg::GraphStatus, STATUS_COMMANDS, 0),
                ]);
            }
            ops.push(store(setup::COMMAND_CONTROL, 0));
        }
        for &(method, data) in &lists.methods {
            ops.extend([
                Op::Write(PgraphReg::GraphMethodPortData.into(), data),
                Op::Write(PgraphReg::GraphMethodPort.into(), METHOD_PORT_GO | method),
            ]);
        }
        ops.extend([
            poll(PgraphReg::GraphStatus, 1, 0),
            Op::Write(FecsReg::FecsNextChannel.into(), 0),
            Op::Write(FecsReg::FecsIntrSet.into(), FECS_SWITCH_REQUEST),
            poll(FecsReg::FecsChannel, FECS_CHANNEL_VALID, 0),
            Op::Block(Bar::Bar3, pointer, vec![0; 8]),
        ]);
        ops
    }

    /// Registers that say where the buffers are, and their values (nouveau `gr/ctxgf100.c`).
    fn list(&self) -> Vec<(u32, u32)> {
        let by_256 = |at: u64| ((HOST_VA.0 + at) >> 8) as u32;
        let attributes = ((HOST_VA.0 + FRAME) >> 12) as u32;
        let bundles = setup::BUFFER_VALID | BUNDLE_BYTES >> 8;
        let mut list = vec![
            (setup::POOL, by_256(0)),
            (setup::POOL_VALID, setup::BUFFER_VALID),
            (setup::POOL_OF_TPCS, by_256(0)),
            (setup::POOL_OF_TPCS_SIZE, 0),
            (setup::BUNDLES, by_256(BUNDLE_AT.into())),
            (setup::BUNDLES_SIZE, bundles),
            (setup::BUNDLES_OF_GPCS, by_256(BUNDLE_AT.into())),
            (setup::BUNDLES_OF_GPCS_SIZE, bundles),
            (setup::ATTRIBUTES_OF_GPCS, setup::BUFFER_VALID | attributes),
            (setup::ATTRIBUTES_OF_TPCS, setup::ATTRIBUTES_VALID | attributes),
            (setup::ATTRIBUTES_EACH, ATTRIBUTES << 16),
        ];
        let tpcs = (0..)
            .zip(self.tpcs)
            .flat_map(|(gpc, tpcs)| (0..tpcs).map(move |tpc| (gpc, tpc)));
        list.extend((0..).zip(tpcs).map(|(number, (gpc, tpc))| {
            let first = number * ATTRIBUTES_MAX;
            let value = ATTRIBUTES << 16 | first;
            (setup::attributes_of_tpc(gpc, tpc), value)
        }));
        list
    }

    /// Content of the first page of a VM's buffers, the list of registers in it.
    pub(crate) fn first_buffer(&self) -> Vec<u8> {
        let mut page = vec![0; FRAME as usize];
        let list = self.list();
        let words = list.iter().flat_map(|&(at, value)| [at, value]);
        for (slot, word) in page[LIST_AT as usize..].as_chunks_mut().0.iter_mut().zip(words) {
            *slot = word.to_le_bytes();
        }
        page
    }

    /// An image with that content, page by page, or one whose context nobody has used. Its list of registers is the host's, whatever the
    /// content says.
    pub(crate) fn image(&self, content: Option<&[u8]>) -> Vec<Vec<u8>> {
        let mut image = content.unwrap_or(&self.golden).to_vec();
        image.resize(self.image_bytes() as usize, 0);
        let list = match self.has_microcode() {
            true => [self.list().len() as u32, ((HOST_VA.0 + LIST_AT) >> 8) as u32],
            false => [0; 2],
        };
        for (slot, word) in image.as_chunks_mut().0.iter_mut().zip(list) {
            *slot = word.to_le_bytes();
        }
        image.chunks(FRAME as usize).map(<[u8]>::to_vec).collect()
    }
}

/// What nouveau does before it makes a golden image: the front end is kept on while PGRAPH is reset.
fn power_up() -> Vec<Op> {
    let mode = |value: u32| {
        [
            Op::Write(PgraphReg::GraphPowerMode.into(), value | POWER_MODE_BUSY),
            poll(PgraphReg::GraphPowerMode, POWER_MODE_BUSY, 0),
        ]
    };
    let mut ops = Vec::from(mode(setup::POWER_ON));
    ops.extend([
        store(setup::RESET, setup::RESET_BEGINS),
        store(setup::RESET, setup::RESET_ENDS),
    ]);
    ops.extend(mode(0));
    ops.push(store(setup::CONSTANTS_CLEARED, 1));
    ops
}

/// Two words of an instance block.
pub(crate) fn context_pointer(va: u64) -> [u8; 8] {
    /// Flag that drivers set (nouveau `fifo/gf100.c`).
    const VALID: u64 = 4;
    (va | VALID).to_le_bytes()
}

impl Card {
    /// FECS has started, or the golden image was made, or neither: what comes next of PGRAPH's bring-up.
    pub(crate) fn graph_job(&mut self, job: Job, actions: &mut Actions) {
        let Self {
            graph, tokens, arena, ..
        } = self;
        match job {
            Job::GraphStarted => graph.ask(tokens, actions),
            Job::GoldenMade => {
                graph.golden = vec![0; graph.image_bytes() as usize];
                let Some(making) = &mut graph.making else { return };
                for page in 0..graph.image_pages * (FRAME / SMALL_PAGE) as usize {
                    let token = tokens.next();
                    making.asked.push((token, Asked::Page(page)));
                    actions.push(Action::HostRead {
                        token,
                        bar: Bar::Bar3,
                        offset: arena.window(making.at) + page as u64 * SMALL_PAGE,
                        bytes: SMALL_PAGE as u32,
                    });
                }
            }
            _ => {}
        }
    }

    /// Takes a value that PGRAPH's bring-up asked for. `Ok(true)`: PGRAPH is up with it.
    ///
    /// # Errors
    /// The card says something that cannot be.
    pub(crate) fn graph_value(&mut self, token: Token, data: &[u8]) -> Result<bool, StartFailure> {
        let Some(making) = &mut self.graph.making else {
            return Ok(false);
        };
        let Some(at) = making.asked.iter().position(|(asked, _)| *asked == token) else {
            return Ok(false);
        };
        let (_, what) = making.asked.swap_remove(at);
        let (is_last, scratch) = (making.asked.is_empty(), making.at);
        self.graph.known(what, data)?;
        if !is_last {
            return Ok(false);
        }
        if let Asked::Page(_) = what {
            let used = self.graph.golden.iter().rposition(|byte| *byte != 0);
            self.graph.golden.truncate(used.map_or(0, |last| last + 1));
            self.graph.making = None;
            // It was taken for this.
            let _ = self.arena.release(scratch, SCRATCH_BYTES, None);
            return Ok(true);
        }
        let ops = self.graph.make(&self.own, scratch, |at| self.arena.window(at));
        self.lanes.runlist.push(ops, Job::GoldenMade);
        Ok(false)
    }

    /// PGRAPH was reset: its microcode was given again, and until that answers nobody may come onto the engine.
    pub(crate) fn await_graph(&mut self) {
        self.graph.starting += 1;
        let answered = Op::must(
            FecsReg::FecsScratch(0),
            fecs_nouveau::DONE,
            fecs_nouveau::DONE,
            CardOperation::ContextSwitching,
        );
        self.lanes.flush.push([answered], Job::GraphRestarted);
    }

    /// FECS is given microcode for the first time, and awaited.
    pub(super) fn bring_up_graph(&mut self) {
        if self.graph.has_microcode() {
            let mut ops = self.graph.start();
            ops.push(poll(
                FecsReg::FecsScratch(0),
                fecs_nouveau::DONE,
                fecs_nouveau::DONE,
            ));
            self.lanes.runlist.push(ops, Job::GraphStarted);
        }
    }
}

impl Inspect for Graph {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.flag("has_microcode", self.has_microcode());
        tree.flag("is_starting", self.is_starting());
        tree.bytes("image", self.image_bytes());
        tree.bytes("golden_image", self.golden.len() as u64);
    }
}
