//! A VM that knows what its memory and its grids have to give, beside one that does harm, at a broker in real time.
//!
//! * `live`: a guest's code behind a vfio-user socket; the longest wait for one of its accesses is kept
//! * `victim`: copies and grids whose results are checked, block by block
//! * `grinder`: grids of one length after one another, for those who measure what a move of memory stops
//! * [`attacks`]: what the other VM does; `clients`: what its VMM does, by `raw_client`
//!
//! Fair speed is what two victims get beside each other. `cargo bench -p integration --bench neighbour` measures;
//! `tests/neighbour.rs` checks that the victim's bytes are right and that it gets on, without looking at a clock.

pub mod attacks;
pub mod blocks;
mod clients;
pub mod everywhere;
pub mod grinder;
mod live;
mod victim;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use broker::{Broker, SocketAccess, VmSocket, VmStats};
use card::CardConfig;
use fermi_spec::board::Board;
use vgpu::policy::PolicyName;
use vgpu::{GpuConfig, Quota, VmConfig};
use vramd::host::{CardChoice, HostSetup, start_broker};

use attacks::Attack;
pub(crate) use live::bar1_memory;

/// Names of the VMs.
const VICTIM: &str = "victim";
const OTHERS: [&str; 2] = ["other", "third"];
const MIB: u64 = 1 << 20;
const CARD_VRAM: u64 = 128 * MIB;
const GUEST_VRAM: u64 = 96 * MIB;
const HOST_RAM: u64 = 2048 * MIB;
/// VRAM of a VM that is to be short of it.
const LITTLE: u64 = 4 * MIB;
/// A card on which two VMs do not fit that use all they have, and what each of them has. The broker keeps some 8 MiB.
const SHORT_VRAM: u64 = 64 * MIB;
const LARGE_VRAM: u64 = 48 * MIB;
/// A chunk that takes longer to move than a suspension may: a VM's VRAM there is three of them.
pub const LARGE_CHUNK: u64 = 16 * MIB;
/// Rest after which a VM on it lends.
const LENDS_AFTER_NS: u64 = 20_000_000;
/// RAM that a VM may map: an attack wants a GiB of it.
const GUEST_RAM: u64 = 2048 * MIB;
/// GPU time that the watchdog gives. The software card takes a hundred times as long for a full grid as a card would.
const WATCHDOG_NS: u64 = 10_000_000;
/// Time without a block of the victim's after which it stands still.
const STANDSTILL: Duration = Duration::from_secs(30);
/// Time between two looks at the victim.
const LOOK: Duration = Duration::from_millis(5);
/// The same at a move of so many bytes, and longer at one of more, up to so many times.
const MOVE_LOOK: Duration = Duration::from_micros(200);
const MOVE_LOOK_BYTES: u64 = 2 * MIB;
const MOVE_LOOKS_APART: u32 = 20;

/// What is known of a VM while it runs.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    blocks: AtomicU64,
    /// The end of the last block's grid by the card's clock, of a victim.
    card_ns: AtomicU64,
    longest_ns: AtomicU64,
}

impl Meter {
    /// Of a victim: blocks that were written, read back and found right, with a grid for each. Of an attacker: rounds.
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    fn note_wait(&self, wait: Duration) {
        let ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.longest_ns.fetch_max(ns, Ordering::Relaxed);
    }

    fn count_block(&self) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
    }

    fn count_block_at(&self, card_ns: u64) {
        self.card_ns.store(card_ns, Ordering::Relaxed);
        self.count_block();
    }

    /// The longest wait for an access since this was last asked.
    fn take_longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.swap(0, Ordering::Relaxed))
    }
}

/// What a victim got beside somebody.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Blocks in a second.
    pub speed: f64,
    /// Blocks in a second of the card's clock, which a software card that emulates grids is behind of.
    pub speed_by_card: f64,
    /// Longest wait for an access that began or ended meanwhile.
    pub longest: Duration,
}

/// A broker with a software card and sockets for VMs: one whose work is checked, and others.
pub struct Host {
    folder: tempfile::TempDir,
    broker: Broker,
    victim: Code,
}

/// What hosts differ in.
struct Shape {
    /// Bytes of VRAM of the card and of each VM.
    vram_bytes: u64,
    guest_vram: u64,
    /// Bytes of a chunk, the most that one suspension moves, and the least of a chunk that moves alone.
    chunk_bytes: u64,
    batch_bytes: u64,
    part_bytes: u64,
    policy: PolicyName,
    /// Quota of those that are not the victim.
    others: Quota,
    lends_after_ns: u64,
    /// Of the card.
    workers: u32,
    victim: Code,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            vram_bytes: CARD_VRAM,
            guest_vram: GUEST_VRAM,
            chunk_bytes: 2 * MIB,
            batch_bytes: GpuConfig::default().batch_bytes,
            part_bytes: GpuConfig::default().part_bytes,
            policy: PolicyName::default(),
            others: Quota::default(),
            lends_after_ns: GpuConfig::default().lends_after_ns,
            workers: 0,
            victim: victim::run::<8, 1>,
        }
    }
}

impl Shape {
    fn lending() -> Self {
        Self {
            vram_bytes: SHORT_VRAM,
            guest_vram: LARGE_VRAM,
            lends_after_ns: LENDS_AFTER_NS,
            victim: victim::run::<40, 40>,
            ..Self::default()
        }
    }
}

impl Host {
    /// Starts the broker.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn start() -> Result<Self> {
        Self::shaped(Shape::default())
    }

    /// The same with so many bytes of VRAM, of the card and of each VM.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn with_vram(vram_bytes: u64, guest_vram: u64) -> Result<Self> {
        Self::shaped(Shape {
            vram_bytes,
            guest_vram,
            ..Shape::default()
        })
    }

    /// The same with chunks of another size, which move in parts of so many bytes at least.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn with_chunks(vram_bytes: u64, guest_vram: u64, chunk_bytes: u64, part_bytes: u64) -> Result<Self> {
        Self::shaped(Shape {
            vram_bytes,
            guest_vram,
            chunk_bytes,
            part_bytes,
            ..Shape::default()
        })
    }

    /// One whose policy looks at launches of VMs with memory in host RAM, as the others soon have.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn looking(policy: PolicyName) -> Result<Self> {
        let others = Quota {
            max: LITTLE,
            ..Quota::default()
        };
        Self::shaped(Shape {
            policy,
            others,
            ..Shape::default()
        })
    }

    /// One whose card has a thread that runs blocks ahead of their turn, if there is a processor for it.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn with_worker() -> Result<Self> {
        Self::shaped(Shape {
            workers: 1,
            ..Shape::default()
        })
    }

    /// One whose VMs lend after short rests, and whose victim uses more than half of the card.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn lending() -> Result<Self> {
        Self::shaped(Shape::lending())
    }

    /// The same as a broker has it that nobody configured: who rests lends late, unless it rests for long as a habit.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn lending_by_habit() -> Result<Self> {
        Self::shaped(Shape {
            lends_after_ns: GpuConfig::default().lends_after_ns,
            ..Shape::lending()
        })
    }

    /// One whose VMs lend after short rests, with chunks of which each goes and comes in parts.
    ///
    /// # Errors
    /// The broker does not start.
    pub fn lending_in_parts() -> Result<Self> {
        Self::shaped(Shape {
            chunk_bytes: LARGE_CHUNK,
            // However fast this host copies.
            batch_bytes: GpuConfig::default().part_bytes,
            ..Shape::lending()
        })
    }

    fn shaped(shape: Shape) -> Result<Self> {
        let Shape {
            vram_bytes,
            guest_vram,
            chunk_bytes,
            batch_bytes,
            part_bytes,
            policy,
            others,
            lends_after_ns,
            workers,
            victim,
        } = shape;
        let folder = tempfile::tempdir().context("cannot create a folder for sockets")?;
        // Attackers are promised what they attack with, so that it is not the broker's bound of loans that stops them.
        let socket = |name: &str, channels: u32| {
            let config = VmConfig {
                name: name.to_owned(),
                guest_vram,
                chunk_bytes,
                ram: GUEST_RAM,
                channels,
                quota: if name == VICTIM { Quota::default() } else { others },
            };
            VmSocket::bind(&folder.path().join(name), &SocketAccess::default(), config)
        };
        let broker = start_broker(HostSetup {
            card: CardChoice::Model(CardConfig {
                board: Board::Gtx480,
                vram_bytes,
                needs_microcode: false,
                strict: true,
                paced: false,
                workers,
            }),
            settings: GpuConfig {
                host_ram: HOST_RAM,
                seed: 1,
                watchdog_ns: WATCHDOG_NS,
                policy,
                lends_after_ns,
                batch_bytes,
                part_bytes,
                ..GpuConfig::default()
            },
            firmware: None,
            flights: None,
            record: None,
            vms: vec![
                socket(VICTIM, vgpu::CHANNELS_DEFAULT)?,
                socket(OTHERS[0], attacks::CHANNELS.into())?,
                socket(OTHERS[1], attacks::CHANNELS.into())?,
            ],
        })?;
        Ok(Self {
            folder,
            broker,
            victim,
        })
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The sockets of those that are not the victim.
    pub(crate) fn others(&self) -> [PathBuf; 2] {
        OTHERS.map(|name| self.socket(name))
    }

    /// Starts the VM whose work is checked.
    pub fn victim(&self) -> Running {
        Running::start(self.socket(VICTIM), self.victim)
    }

    /// Starts the same work as the victim's in the other VM.
    pub fn twin(&self) -> Running {
        Running::start(self.socket(OTHERS[0]), self.victim)
    }

    /// Starts a VM that keeps the card busy with grids: of about a quarter of a millisecond of the host's time, or of ten
    /// to twenty.
    pub fn grinder(&self, has_long_grids: bool) -> Running {
        let code: Code = match has_long_grids {
            false => grinder::run::<24, 48>,
            true => grinder::run::<1200, 48>,
        };
        Running::start(self.socket(VICTIM), code)
    }

    /// Starts one with the short grids and 320 MiB of memory that they can write.
    pub fn large_grinder(&self) -> Running {
        Running::start(self.socket(VICTIM), grinder::run::<24, 320>)
    }

    /// Starts one that has VRAM for two chunks at a broker of [`Host::looking`] and whose grids use three in turn: under a policy by which they wait
    /// for what they use, chunks change places for each of them.
    pub fn rotator(&self) -> Running {
        Running::start(self.socket(OTHERS[0]), |place| grinder::rotate(place, |_| {}))
    }

    /// Moves so many bytes of the VM whose grids run, to host RAM or back, and waits until they have moved. Its quota is what
    /// moves them. Returns its figures before and after, and how long it took.
    ///
    /// # Errors
    /// The broker has ended, or the VM is not there.
    pub fn relocate(&self, bytes: u64, is_out: bool) -> Result<(VmStats, VmStats, Duration)> {
        let before = self.stats()?;
        let max = match is_out {
            true => before.resident_bytes - bytes,
            false => u64::MAX,
        };
        let quota = Quota {
            max,
            ..Quota::default()
        };
        // Whoever looks wakes the broker, which takes a processor from what is looked at.
        let times = u32::try_from(bytes / MOVE_LOOK_BYTES).unwrap_or(u32::MAX);
        let look = MOVE_LOOK * times.clamp(1, MOVE_LOOKS_APART);
        let start = Instant::now();
        self.broker.ask_quota(VICTIM.to_owned(), move |_| quota, |_| ())?;
        let moved = |stats: &VmStats| stats.spilled_out_bytes + stats.refilled_bytes;
        loop {
            let now = self.stats()?;
            if moved(&now) - moved(&before) >= bytes {
                return Ok((before, now, start.elapsed()));
            }
            if start.elapsed() > STANDSTILL {
                bail!("{} of {bytes} bytes move", moved(&now) - moved(&before));
            }
            thread::sleep(look);
        }
    }

    /// Figures of the victim.
    ///
    /// # Errors
    /// It is not attached.
    pub fn stats(&self) -> Result<VmStats> {
        self.stats_of(VICTIM)
    }

    /// Figures of the VM of [`Host::rotator`].
    ///
    /// # Errors
    /// It is not attached.
    pub fn stats_of_other(&self) -> Result<VmStats> {
        self.stats_of(OTHERS[0])
    }

    fn stats_of(&self, name: &str) -> Result<VmStats> {
        let all = self.broker.snapshot().vms;
        let mut vms = all.into_iter().filter(|vm| vm.is_attached && vm.name == name);
        vms.next().context("the VM is not attached")
    }

    /// Starts an attack in the other VM. It goes on until it is stopped, with a new connection where it lost one.
    pub fn attacker(&self, attack: &Attack) -> Running {
        Running::start(self.socket(OTHERS[0]), attack.run)
    }
}

/// What a VM's code is given.
#[derive(Clone)]
pub(crate) struct Place {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    meter: Arc<Meter>,
}

impl Place {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A VM's code: it runs until its place says that it is over.
pub(crate) type Code = fn(&Place) -> Result<()>;

/// A VM on a thread of its own.
pub struct Running {
    place: Place,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Running {
    fn start(socket: PathBuf, code: Code) -> Self {
        let place = Place {
            socket,
            stop: Arc::new(AtomicBool::new(false)),
            meter: Arc::new(Meter::default()),
        };
        let its_own = place.clone();
        Self {
            place,
            thread: Some(thread::spawn(move || code(&its_own))),
        }
    }

    /// Waits until it has done `more` blocks from now on.
    ///
    /// # Errors
    /// It has ended, or stands still.
    pub fn wait_for(&mut self, more: u64) -> Result<()> {
        let goal = self.place.meter.blocks() + more;
        let (mut last, mut since) = (self.place.meter.blocks(), Instant::now());
        while last < goal {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                self.join().with_context(|| format!("after {last} blocks"))?;
                bail!("it has ended after {last} blocks");
            }
            if since.elapsed() > STANDSTILL {
                bail!("it stands still after {last} blocks");
            }
            thread::sleep(LOOK);
            let now = self.place.meter.blocks();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Looks at it for a while.
    pub fn measure(&self, window: Duration) -> Measured {
        let meter = &self.place.meter;
        let card = || meter.card_ns.load(Ordering::Relaxed);
        meter.take_longest();
        let (start, before, card_before) = (Instant::now(), meter.blocks(), card());
        thread::sleep(window);
        let (elapsed, after, card_after) = (start.elapsed(), meter.blocks(), card());
        let blocks = (after - before) as f64;
        Measured {
            speed: blocks / elapsed.as_secs_f64(),
            speed_by_card: blocks
                / Duration::from_nanos(card_after.saturating_sub(card_before)).as_secs_f64(),
            longest: meter.take_longest(),
        }
    }

    /// Stops it, and waits until it has ended.
    ///
    /// # Errors
    /// What it found wrong. An access that was under way is in `longest`.
    pub fn end(mut self) -> Result<Duration> {
        self.place.stop.store(true, Ordering::Relaxed);
        self.join()?;
        Ok(self.place.meter.take_longest())
    }

    fn join(&mut self) -> Result<()> {
        let thread = self.thread.take().context("it has ended")?;
        thread.join().unwrap_or_else(|_| bail!("its code panicked"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.place.stop.store(true, Ordering::Relaxed);
    }
}
