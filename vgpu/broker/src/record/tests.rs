use std::io::{BufReader, Cursor};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fermi_spec::addr::{Gpa, GuestVramAddr};
use fermi_spec::bar::Bar;
use proptest::prelude::*;
use vgpu::{Action, Denial, Request, RequestId, VmId};

use super::*;
use crate::replay::{Compared, Difference, Replay, ReplayError};

const VM: VmId = VmId(1);

/// Target that a recording is written to.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Memory whose bytes change with every access, with holes.
struct Noise(u64);

impl HostMemory for Noise {
    fn read(&mut self, at: Place, data: &mut [u8]) -> bool {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(key(at).2);
        let byte = if self.0 >> 63 == 0 {
            (self.0 >> 40) as u8
        } else {
            0
        };
        data.fill(byte);
        if self.0 >> 60 == 7 {
            data.fill(0xff);
            return false;
        }
        true
    }

    fn write(&mut self, _at: Place, _data: &[u8]) -> bool {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0 >> 62 != 1
    }
}

/// A core whose actions depend on everything it saw.
#[derive(Default)]
struct Scripted {
    state: u64,
    /// Falsifies what it does from this event on.
    lies_at: Option<u64>,
    events: u64,
}

impl Core for Scripted {
    fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions) {
        self.events += 1;
        let Event::Request {
            vm,
            id: request,
            request: Request::Read { offset, bytes, .. },
        } = event
        else {
            return;
        };
        self.state = self.state.wrapping_add(now.0);
        let mut data = vec![0; bytes as usize];
        let place = Place::Image {
            vm,
            at: GuestVramAddr(offset),
        };
        let is_there = memory.read(place, &mut data);
        self.state = data
            .iter()
            .fold(self.state, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
        let is_stored = memory.write(Place::Ram { vm, gpa: Gpa(offset) }, &self.state.to_le_bytes());
        let lie = u64::from(self.lies_at.is_some_and(|at| self.events >= at));
        let value = self.state ^ u64::from(is_there) ^ (u64::from(is_stored) << 1) ^ lie;
        actions.push(Action::HostWrite {
            bar: Bar::Bar0,
            offset: value & 0xfffc,
            data: vec![value as u8; 4],
        });
        actions.push(Action::Reply {
            vm,
            request,
            reply: vgpu::Reply::Data(data),
        });
    }
}

fn record(accesses: &[(u64, u32)]) -> Vec<u8> {
    let sink = Sink::default();
    let mut recorder = Recorder::new(Box::new(sink.clone()), "test".into(), &GpuConfig::default());
    let (mut core, mut memory, mut actions) = (Scripted::default(), Noise(1), Actions::default());
    for (index, (offset, bytes)) in accesses.iter().enumerate() {
        let event = Event::Request {
            vm: VmId(1),
            id: RequestId(index as u64),
            request: Request::Read {
                bar: Bar::Bar1,
                offset: *offset,
                bytes: *bytes,
            },
        };
        recorder.apply(
            &mut core,
            Tick(index as u64 * 10),
            event,
            &mut memory,
            &mut actions,
        );
        actions.drain();
    }
    drop(recorder);
    std::mem::take(&mut *sink.0.lock().unwrap())
}

fn replay(file: Vec<u8>) -> Replay {
    Replay::new(Box::new(BufReader::new(Cursor::new(file)))).unwrap()
}

proptest! {
    #[test]
    fn replay_of_a_recording_is_equal(
        accesses in prop::collection::vec((0u64..4, prop::sample::select(vec![1u32, 8, 64, 4096])), 0..60),
    ) {
        let summary = replay(record(&accesses)).run(&mut Scripted::default()).unwrap();
        prop_assert_eq!(summary.events, accesses.len() as u64);
        prop_assert_eq!(summary.actions, accesses.len() as u64 * 2);
    }

    #[test]
    fn any_bytes_survive_the_encoding(parts in prop::collection::vec((any::<u8>(), 0usize..40), 0..20)) {
        let data: Vec<u8> = parts.iter().flat_map(|(byte, count)| vec![*byte; *count]).collect();
        let at = Place::Own { offset: 16 };
        let (mut writer, mut reader) = (ReadCache::default(), ReadCache::default());
        for _ in 0..2 {
            let text = writer.encode(at, &data);
            prop_assert_eq!(&reader.decode(at, data.len(), &text).unwrap(), &data);
        }
    }

    #[test]
    fn any_text_decodes_or_is_refused(text in "[0-9a-f*= ]{0,40}", bytes in 0usize..64) {
        if let Ok(data) = ReadCache::default().decode(Place::Own { offset: 0 }, bytes, &text) {
            prop_assert_eq!(data.len(), bytes);
        }
    }
}

#[test]
fn zero_page_takes_one_token() {
    let text = ReadCache::default().encode(Place::Own { offset: 0 }, &[0; 4096]);
    assert_eq!(text, "0000000000000000*512");
}

#[test]
fn other_decision_is_found_at_its_line() {
    let file = record(&[(0, 8), (1, 8), (2, 8)]);
    let mut liar = Scripted {
        lies_at: Some(2),
        ..Scripted::default()
    };
    let error = replay(file).run(&mut liar).unwrap_err();
    let ReplayError::Differs {
        line: 3,
        difference: Difference::Action { index: 0, .. },
        ..
    } = error
    else {
        panic!("{error}");
    };
}

#[test]
fn denial_in_other_words_is_the_same_action_where_words_do_not_count() {
    struct Denying;
    impl Core for Denying {
        fn apply(&mut self, _: Tick, _: Event, _: &mut dyn HostMemory, actions: &mut Actions) {
            let reason = Denial::AttachedAlready { vm: VM };
            actions.push(Action::Denied {
                vm: VM,
                reason: reason.clone(),
            });
            actions.push(Action::QuotaRefused { vm: VM, reason });
        }
    }
    let sink = Sink::default();
    let mut recorder = Recorder::new(Box::new(sink.clone()), "test".into(), &GpuConfig::default());
    let mut actions = Actions::default();
    recorder.apply(&mut Denying, Tick(0), Event::Start, &mut Noise(1), &mut actions);
    drop(recorder);
    let file = String::from_utf8(std::mem::take(&mut *sink.0.lock().unwrap())).unwrap();
    let typed = r#"{"AttachedAlready":{"vm":1}}"#;
    assert!(file.contains(typed), "{file}");
    let worded = file.replace(typed, r#""vm1 is attached already""#).into_bytes();
    let without_words = replay(worded.clone()).comparing(Compared::AllButNotices);
    without_words.run(&mut Denying).unwrap();
    replay(worded).run(&mut Denying).unwrap_err();
    replay(file.into_bytes()).run(&mut Denying).unwrap();
}

#[test]
fn line_cut_off_by_a_crash_is_left_out() {
    let mut file = record(&[(0, 8), (1, 8)]);
    file.truncate(file.len() - 5);
    let summary = replay(file).run(&mut Scripted::default()).unwrap();
    assert_eq!((summary.events, summary.is_cut), (1, true));
}

#[test]
fn foreign_format_is_refused() {
    let file = String::from_utf8(record(&[]))
        .unwrap()
        .replace("recording\":2", "recording\":9");
    let error = Replay::new(Box::new(Cursor::new(file.into_bytes()))).unwrap_err();
    assert!(matches!(error, ReplayError::Format { found: 9 }), "{error}");
}

#[test]
fn full_disk_ends_the_recording_and_not_the_broker() {
    struct Full(Arc<AtomicUsize>);
    impl Write for Full {
        fn write(&mut self, _data: &[u8]) -> std::io::Result<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let writes = Arc::new(AtomicUsize::new(0));
    let mut recorder = Recorder::new(
        Box::new(Full(writes.clone())),
        "test".into(),
        &GpuConfig::default(),
    );
    let (mut core, mut actions) = (Scripted::default(), Actions::default());
    recorder.apply(&mut core, Tick(0), Event::Wake, &mut Noise(0), &mut actions);
    assert_eq!(core.events, 1);
    assert_eq!(
        writes.load(Ordering::Relaxed),
        1,
        "given up after the first failure"
    );
}
