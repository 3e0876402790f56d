use fermi_spec::addr::Iova;
use fermi_spec::bar::Bar;
use fermi_spec::regs::{Bar0Reg, PbusReg, PmcReg, PpciReg};

use super::*;
use crate::event::{Place, Reply};

const VM: VmId = VmId(3);
/// A store or a load of a guest.
const SECRET: [u8; 4] = [0xbe, 0xba, 0xfe, 0xca];

fn load(request: u64, bar: Bar, offset: u64) -> Event {
    Event::Request {
        vm: VM,
        id: RequestId(request),
        request: Request::Read {
            bar,
            offset,
            bytes: 4,
        },
    }
}

fn store(bar: Bar, offset: u64) -> Event {
    Event::Request {
        vm: VM,
        id: RequestId(1),
        request: Request::Write {
            bar,
            offset,
            data: SECRET.to_vec(),
        },
    }
}

fn reply(request: u64, reply: Reply) -> Action {
    Action::Reply {
        vm: VM,
        request: RequestId(request),
        reply,
    }
}

fn register(reg: impl Into<Bar0Reg>) -> u64 {
    reg.into().offset().into()
}

fn host_read(token: u64, bar: Bar, offset: u64) -> Action {
    Action::HostRead {
        token: Token(token),
        bar,
        offset,
        bytes: 4,
    }
}

fn host_write(bar: Bar, offset: u64) -> Action {
    Action::HostWrite {
        bar,
        offset,
        data: SECRET.to_vec(),
    }
}

fn host_value(token: u64) -> Event {
    Event::HostValue {
        token: Token(token),
        data: SECRET.to_vec(),
    }
}

/// Notes them a microsecond apart.
fn recorded(steps: &[(Event, &[Action])]) -> FlightRecorder {
    let mut recorder = FlightRecorder::default();
    for (number, (event, actions)) in (1..).zip(steps) {
        recorder.event(Tick(number * 1000), event);
        recorder.actions(actions);
    }
    recorder
}

fn text_of(recorder: &FlightRecorder) -> Vec<String> {
    recorder.flight().lines.iter().map(Line::to_string).collect()
}

#[test]
fn events_and_what_they_led_to_are_told_by_name() {
    let at = register(PmcReg::PmcIntr(0));
    let recorder = recorded(&[
        (load(7, Bar::Bar0, at), &[reply(7, Reply::Data(SECRET.to_vec()))]),
        (
            Event::HostInterrupt,
            &[
                host_read(1, Bar::Bar0, at),
                host_write(Bar::Bar0, register(PpciReg::PciMsiRearm)),
            ],
        ),
        (host_value(1), &[Action::Notice(Notice::CopiesByWindow)]),
    ]);
    assert_eq!(
        text_of(&recorder),
        [
            "       0.001000        1 vm3 loads 4 B of PmcIntr(0) (0x000100), request 7: answered",
            "       0.002000        2 the card raises its interrupt",
            "       0.002000        2   read 1: load 4 B of the card's PmcIntr(0) (0x000100)",
            "       0.002000        2   store 0xcafebabe to the card's PciMsiRearm (0x088704)",
            "       0.003000        3 the card answers read 1 with 0xcafebabe",
            "       0.003000        3   # CopiesByWindow",
        ]
    );
}

#[test]
fn bytes_that_guests_load_and_store_are_not_kept() {
    let window = u64::from(fermi_spec::regs::PRAMIN_BASE) + 0x40;
    let recorder = recorded(&[
        (
            store(Bar::Bar0, register(PbusReg::PraminBase)),
            &[
                host_read(1, Bar::Bar1, 0x1000),
                host_read(2, Bar::Bar0, window),
                host_read(3, Bar::Bar3, 0),
                host_write(Bar::Bar1, 0x1000),
                host_write(Bar::Bar0, window),
                reply(1, Reply::Data(SECRET.to_vec())),
            ],
        ),
        (store(Bar::Bar1, 0x100), &[]),
        (host_value(1), &[reply(8, Reply::Data(SECRET.to_vec()))]),
        (host_value(2), &[]),
        (host_value(3), &[]),
    ]);
    let flight = recorder.flight();
    assert_eq!(flight.lines.len(), 11);
    let told = format!(
        "{flight} {flight:?} {}",
        serde_json::to_string(&flight).expect("text")
    );
    let secret = u32::from_le_bytes(SECRET);
    for trace in [
        format!("{secret:x}"),
        format!("{secret}"),
        "bebafeca".to_owned(),
        "190,186".to_owned(),
        "190, 186".to_owned(),
    ] {
        assert!(!told.contains(&trace), "{trace} in {told}");
    }
}

#[test]
fn value_that_answers_an_old_read_of_memory_is_not_kept() {
    let recorder = recorded(&[
        (
            Event::Wake,
            &[
                host_read(5, Bar::Bar1, 0),
                host_read(5 + TOKENS as u64, Bar::Bar0, register(PmcReg::Boot0)),
            ],
        ),
        (host_value(5), &[]),
        (host_value(5 + TOKENS as u64), &[]),
    ]);
    let text = text_of(&recorder);
    assert!(text[3].ends_with("read 5 with 4 B"), "{}", text[3]);
    assert!(text[4].ends_with("with 0xcafebabe"), "{}", text[4]);
}

#[test]
fn late_answer_has_a_line_of_its_own() {
    let recorder = recorded(&[
        (load(1, Bar::Bar1, 0), &[]),
        (Event::Wake, &[reply(1, Reply::Data(Vec::new()))]),
    ]);
    let text = text_of(&recorder);
    assert!(
        text[0].ends_with("request 1: not answered at once"),
        "{}",
        text[0]
    );
    assert!(text[2].ends_with("  request 1 of vm3 is answered"), "{}", text[2]);
}

#[test]
fn guest_that_polls_pushes_out_accesses_only() {
    let mut recorder = recorded(&[(
        Event::MapRefused { iova: Iova(0x1000) },
        &[
            Action::Interrupt {
                vm: VM,
                kind: crate::InterruptKind::Msi,
            },
            Action::Notice(Notice::CopiesByWindow),
        ],
    )]);
    let polls = 3 * ACCESSES as u64;
    for request in 0..polls {
        recorder.event(Tick(request), &load(request, Bar::Bar0, 0));
        recorder.actions(&[reply(request, Reply::Done)]);
    }
    let lines = recorder.flight().lines;
    assert_eq!(lines.len(), ACCESSES + 3);
    let events: Vec<u64> = lines.iter().map(|line| line.event).collect();
    assert_eq!(events[..4], [1, 1, 1, 2 + polls - ACCESSES as u64]);
    assert_eq!(events.last(), Some(&(1 + polls)));
    assert!(events.is_sorted());
}

#[test]
fn rings_keep_what_came_last() {
    let mut recorder = FlightRecorder::default();
    for number in 0..=OTHERS as u64 {
        recorder.event(Tick(number), &Event::Wake);
        recorder.remark(number.to_string());
    }
    let lines = recorder.flight().lines;
    assert_eq!(lines.len(), OTHERS + SAYINGS);
    assert_eq!(lines[0].event, 2);
    assert_eq!(
        lines.last().map(|line| &line.told),
        Some(&Told::Remark {
            text: OTHERS.to_string()
        })
    );
}

#[test]
fn lines_are_found_by_vm() {
    let recorder = recorded(&[
        (load(1, Bar::Bar0, 0), &[]),
        (
            Event::Detach { vm: VmId(1) },
            &[Action::MapDma {
                iova: Iova(0),
                bytes: 4096,
                memory: Place::Image {
                    vm: VM,
                    at: fermi_spec::addr::GuestVramAddr(0),
                },
                writable: true,
                refusable: false,
            }],
        ),
        (
            Event::Wake,
            &[Action::Notice(Notice::Usage {
                vm: VM,
                resident: 0,
                spilled: 0,
                card: 0,
            })],
        ),
    ]);
    let about: Vec<bool> = recorder
        .flight()
        .lines
        .iter()
        .map(|line| line.is_about(VM))
        .collect();
    assert_eq!(about, [true, false, true, false, true]);
}

#[test]
fn flight_survives_being_written_and_read() {
    let recorder = recorded(&[
        (Event::Start, &[host_read(1, Bar::Bar0, 0)]),
        (store(Bar::Bar1, 8), &[Action::Notice(Notice::CopiesByWindow)]),
        (host_value(1), &[host_write(Bar::Bar0, 0x100)]),
    ]);
    let mut recorder = recorder;
    recorder.remark("the card is lost");
    let flight = recorder.flight();
    let text = serde_json::to_string(&flight).expect("text");
    assert_eq!(serde_json::from_str::<Flight>(&text).expect("a flight"), flight);
    assert!(text.contains(r#""register":"Boot0""#), "{text}");
}
