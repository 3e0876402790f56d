//! Indexed loads from constant banks.

use super::{A, Flat, assemble, launch, noise, run};
use crate::compute::{
    launch::Bank,
    trap::{Stop, WarpError},
};

/// Where a kernel's parameters begin in bank 0.
const PARAMETERS: usize = 0x20;

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn lanes_load_from_their_places_of_their_banks() {
    let program = assemble(
        "mov b32 $r8 $laneid
        shl b32 $r9 $r8 clamp 0x2
        shl b32 $r10 $r8 clamp 0x1
        mov b32 $r11 0x8
        and b32 $r12 $r8 0x1
        shl b32 $r12 $r12 clamp 0x10
        or b32 $r12 $r12 $r9
        set $p0 0x1 lt u32 $r8 0x5
        mov b32 $r6 0x7
        mov b32 $r13 0xfffc
        ld b32 $r0 c0[$r9+0x20]
        ld u8 $r1 c0[$r8+0x21]
        ld s16 $r2 c0[$r10+0x22]
        ld is b32 $r3 c0[$r12+0x20]
        ld b64 $r4d c0[$r11+0x20]
        $p0 ld b32 $r6 c0[$r9+0x24]
        ld b32 $r7 c0[$r13]
        shl b32 $r8 $r8 clamp 0x5
        add b32 $r8 $r8 0x1000000
        st b128 wb g[$r8] $r0q
        st b128 wb g[$r8+0x10] $r4q
        exit",
    )
    .expect("assembles");
    let [first, second] = [1, 2].map(|seed| noise(seed, 64));
    let mut memory = Flat::default();
    memory.put_words(A, &[0; 8 * 32]);
    let mut launch = launch(&program, [1, 1, 1], [32, 1, 1], &first);
    launch.banks[1] = Bank::new(&[vec![0; PARAMETERS], bytes_of(&second)].concat());
    run(&mut memory, &program, launch, 1000).expect("it ends");
    let bytes = bytes_of(&first);
    let found = memory.words(A, 8 * 32);
    for (lane, found) in found.as_chunks::<8>().0.iter().enumerate() {
        let half = i16::from_le_bytes([bytes[2 * lane + 2], bytes[2 * lane + 3]]);
        let expected = [
            first[lane],
            bytes[lane + 1].into(),
            half as u32,
            [&first, &second][lane % 2][lane],
            first[2],
            first[3],
            if lane < 5 { first[lane + 1] } else { 7 },
            0,
        ];
        assert_eq!(*found, expected, "{lane}");
    }
}

#[test]
fn load_across_words_is_an_error_of_the_lanes_that_execute_it() {
    for (guard, expected) in [("", Some(WarpError::UnalignedAccess)), ("$p0 ", None)] {
        let text = format!(
            "mov b32 $r8 $laneid
            set $p0 0x1 lt u32 $r8 0x1
            {guard}ld b32 $r0 c0[$r8+0x20]
            exit"
        );
        let program = assemble(&text).expect("assembles");
        let launch = launch(&program, [1, 1, 1], [32, 1, 1], &[1; 32]);
        let stop = run(&mut Flat::default(), &program, launch, 100).err();
        assert_eq!(stop, expected.map(Stop::Error));
    }
}
