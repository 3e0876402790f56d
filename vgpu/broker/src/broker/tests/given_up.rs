//! A VM that the core gives up: it is out, what led to it is written, and its neighbour notices nothing.

use super::*;
use vgpu::{Action, Inconsistency};

/// Gives up the VM that stores to 0xdead.
struct GivesUp(TestCore);

impl Core for GivesUp {
    fn apply(
        &mut self,
        now: vgpu::Tick,
        event: Event,
        memory: &mut dyn vgpu::HostMemory,
        actions: &mut vgpu::Actions,
    ) {
        if let Event::Request { vm, request, .. } = &event
            && matches!(request, Request::Write { offset: 0xdead, .. })
        {
            let part = "frame 7".to_owned();
            let reason = Inconsistency::NotHeld { part };
            return actions.push(Action::GiveUp { vm: *vm, reason });
        }
        self.0.apply(now, event, memory, actions);
    }
}

#[test]
fn vm_that_is_given_up_is_out_and_its_neighbour_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(Setup {
        core: Box::new(GivesUp(TestCore::default())),
        flights: flights_into(&folder),
        ..setup(TestCore::default(), &FakeGpu::default(), None)
    })
    .unwrap();
    let spoiled = broker.attach(vm_config("a")).unwrap();
    let neighbour = broker.attach(vm_config("b")).unwrap();
    let error = spoiled.write(Bar::Bar0, 0xdead, &[0; 4]).unwrap_err();
    assert!(read(&spoiled, 0x1000).is_err(), "{error}");
    assert_eq!(read(&neighbour, 0x1000).unwrap(), 0x0302_0100);
    drop(spoiled);
    // Its name and its place are free again.
    let again = broker.attach(vm_config("a")).unwrap();
    assert_eq!(read(&again, 0x1000).unwrap(), 0x0302_0100);
    assert_eq!(read(&neighbour, 0x1000).unwrap(), 0x0302_0100);
    assert!(broker.wait_ended(std::time::Duration::ZERO).is_none());
    drop((again, neighbour, broker));
    let (reason, lines) = flight_in(&folder);
    let expected =
        "the broker's accounts of vm0 are wrong: its accounts name frame 7, which it does not hold";
    assert_eq!(reason, expected);
    assert!(lines.iter().any(|line| line.contains("give vm0 up")), "{lines:?}");
}
