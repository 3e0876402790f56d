//! Classes 5 and 6: memory accesses.

use super::Wrong;
use super::float::atomic_add;
use super::lane::{Lane, Surroundings, bit, bits, signed};
use crate::shaders::Launch;

/// Addresses of 40 bits.
const ADDRESS_MASK: u64 = (1 << 40) - 1;
const LOCAL_END: u32 = 1 << 24;
const WINDOW_BYTES: u64 = 1 << 24;

/// Bytes of a type, and whether it is extended by its sign.
fn kind(number: u32) -> Result<(usize, bool), Wrong> {
    match number {
        0 => Ok((1, false)),
        1 => Ok((1, true)),
        2 => Ok((2, false)),
        3 => Ok((2, true)),
        4 => Ok((4, false)),
        5 => Ok((8, false)),
        6 => Ok((16, false)),
        _ => Err(Wrong::Unspecified("type")),
    }
}

/// An address in one of the spaces.
#[derive(Clone, Copy)]
enum Address {
    Global(u64),
    Shared(u32),
    Local(u32),
}

impl Lane {
    fn data(&self, first: u32, bytes: usize) -> [u8; 16] {
        let mut data = [0; 16];
        for number in 0..bytes.div_ceil(4) {
            let value = match first {
                63 => 0,
                _ => self.get(first + number as u32),
            };
            data[4 * number..][..4].copy_from_slice(&value.to_le_bytes());
        }
        data
    }

    fn set_data(&mut self, first: u32, data: &[u8], is_signed: bool) {
        if first == 63 {
            return;
        }
        for (number, part) in (0..).zip(data.chunks(4)) {
            let value = part
                .iter()
                .rev()
                .fold(0u32, |value, byte| value << 8 | u32::from(*byte));
            let value = match (part.len(), is_signed) {
                (1, true) => value as i8 as u32,
                (2, true) => value as i16 as u32,
                _ => value,
            };
            self.set(first + number, value);
        }
    }

    fn local_at(&mut self, address: u32, bytes: usize, launch: &Launch) -> Result<&mut [u8], Wrong> {
        let address = address % LOCAL_END;
        let (positive, negative) = (launch.local_positive, launch.local_negative);
        let start = if address >= LOCAL_END - negative {
            address - (LOCAL_END - negative) + positive
        } else if address < positive {
            address
        } else {
            return Err(Wrong::Fault("local address"));
        };
        let range = start as usize..start as usize + bytes;
        self.local.get_mut(range).ok_or(Wrong::Fault("local address"))
    }

    fn access(
        &mut self,
        word: u64,
        place: Address,
        is_store: bool,
        around: &mut Surroundings<'_>,
    ) -> Result<(), Wrong> {
        let (bytes, is_signed) = kind(bits(word, 7, 5))?;
        let register = bits(word, 19, 14);
        let address = match place {
            Address::Global(address) => address,
            Address::Shared(address) | Address::Local(address) => address.into(),
        };
        if !address.is_multiple_of(bytes as u64) {
            return Err(Wrong::Fault("alignment"));
        }
        let mut data = self.data(register, bytes);
        let memory = match place {
            Address::Global(address) => around.memory.at(address, bytes),
            Address::Shared(address) => around.shared.at(address, bytes),
            Address::Local(address) => self.local_at(address, bytes, around.launch).ok(),
        };
        let memory = memory.ok_or(Wrong::Fault("address"))?;
        if is_store {
            memory.copy_from_slice(&data[..bytes]);
        } else {
            data[..bytes].copy_from_slice(memory);
            self.set_data(register, &data[..bytes], is_signed);
        }
        Ok(())
    }

    /// The address of a global access with this offset.
    fn global_address(&self, word: u64, offset: i64) -> u64 {
        let register = bits(word, 25, 20);
        if bit(word, 58) {
            self.get_wide(register).wrapping_add(offset as u64) & ADDRESS_MASK
        } else {
            u64::from(self.get(register).wrapping_add(offset as u32))
        }
    }

    fn window(address: u64, base: u32) -> Option<u32> {
        let inside = address.checked_sub(base.into())?;
        (inside < WINDOW_BYTES).then_some(inside as u32)
    }

    /// Executes an instruction of class 5.
    pub(super) fn memory(
        &mut self,
        word: u64,
        opcode: u32,
        around: &mut Surroundings<'_>,
    ) -> Result<(), Wrong> {
        match opcode {
            0b10000..=0b10010 => {
                let address = self.global_address(word, signed(word, 57, 26).into());
                let place = match (
                    Self::window(address, around.launch.shared_window),
                    Self::window(address, around.launch.local_window),
                ) {
                    (Some(inside), _) => Address::Shared(inside),
                    (_, Some(inside)) => Address::Local(inside),
                    _ => Address::Global(address),
                };
                self.access(word, place, opcode == 0b10010, around)
            }
            // Caches have no visible effect.
            0b10011 | 0b11100 | 0b11010 => Ok(()),
            0b11000 | 0b11001 => {
                let address = self.a(word).wrapping_add(signed(word, 49, 26) as u32);
                let is_store = opcode == 0b11001;
                let place = match (bit(word, 58), bit(word, 56)) {
                    (false, true) => Address::Shared(address),
                    (false, false) => Address::Local(address),
                    (true, _) => return self.locked(word, address, is_store, around),
                };
                self.access(word, place, is_store, around)
            }
            _ => self.atomic(word, opcode, around),
        }
    }

    fn locked(
        &mut self,
        word: u64,
        address: u32,
        is_store: bool,
        around: &mut Surroundings<'_>,
    ) -> Result<(), Wrong> {
        if is_store {
            self.access(word, Address::Shared(address), true, around)?;
            around.shared.locks.remove(&(address / 4));
            return Ok(());
        }
        let is_mine = around.shared.locks.insert(address / 4);
        if is_mine {
            self.access(word, Address::Shared(address), false, around)?;
        }
        self.set_predicate(bits(word, 52, 50), is_mine);
        Ok(())
    }

    fn atomic(&mut self, word: u64, opcode: u32, around: &mut Surroundings<'_>) -> Result<(), Wrong> {
        let operation = bits(word, 9, 5);
        let has_result = opcode >= 0b01000;
        let is_wide = match (opcode & 7, operation) {
            (0b010, 16 | 24 | 25) => true,
            (0b010, 0..=9) | (0b011, 16..=18) | (0b101, 16) => false,
            _ => return Err(Wrong::Unspecified("atomic")),
        };
        let offset = match has_result {
            true => i64::from(signed(word, 57, 55)) << 17 | i64::from(bits(word, 42, 26)),
            false => signed(word, 57, 26).into(),
        };
        let address = self.global_address(word, offset);
        let bytes = if is_wide { 8 } else { 4 };
        let (operand, new) = match is_wide {
            true => (
                self.get_wide(bits(word, 19, 14)),
                self.get_wide(bits(word, 54, 49)),
            ),
            false => (
                self.get(bits(word, 19, 14)).into(),
                self.get(bits(word, 54, 49)).into(),
            ),
        };
        if !address.is_multiple_of(bytes as u64) {
            return Err(Wrong::Fault("alignment"));
        }
        let memory = around.memory.at(address, bytes).ok_or(Wrong::Fault("address"))?;
        let old = memory
            .iter()
            .rev()
            .fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let result = match (opcode & 7, operation) {
            (_, 8 | 24) => operand,
            (_, 9 | 25) if old == operand => new,
            (_, 9 | 25) => old,
            (0b010, 16) => old.wrapping_add(operand),
            (kind, _) => word_result(kind, operation, old as u32, operand as u32).into(),
        };
        memory.copy_from_slice(&result.to_le_bytes()[..bytes]);
        if has_result {
            let register = bits(word, 48, 43);
            match is_wide {
                true => self.set_wide(register, old),
                false => self.set(register, old as u32),
            }
        }
        Ok(())
    }

    /// Class 6: LDC.
    pub(super) fn indexed_constant(&mut self, word: u64, launch: &Launch) -> Result<(), Wrong> {
        if bits(word, 63, 58) != 0b000101 {
            return Err(Wrong::Unspecified("class 6"));
        }
        let (bytes, is_signed) = kind(bits(word, 7, 5))?;
        let (index, offset) = (self.a(word), signed(word, 41, 26) as u32);
        let (bank, address) = match bits(word, 9, 8) {
            0 => (bits(word, 46, 42), index.wrapping_add(offset)),
            2 => (
                bits(word, 46, 42) + (index >> 16),
                (index & 0xffff).wrapping_add(offset),
            ),
            _ => return Err(Wrong::Unspecified("index mode")),
        };
        if !address.is_multiple_of(bytes as u32) {
            return Err(Wrong::Fault("alignment"));
        }
        let mut data = [0; 16];
        for (at, byte) in (0..).zip(&mut data[..bytes]) {
            let address = address.wrapping_add(at);
            *byte = (launch.constant(bank, address & !3) >> (8 * (address & 3))) as u8;
        }
        self.set_data(bits(word, 19, 14), &data[..bytes], is_signed);
        Ok(())
    }
}

/// A 32-bit operation of an atomic instruction of this kind.
fn word_result(kind: u32, operation: u32, old: u32, operand: u32) -> u32 {
    let (x, y) = (old as i32, operand as i32);
    match (kind, operation) {
        (0b101, _) => atomic_add(old, operand),
        (0b011, 17) => x.min(y) as u32,
        (0b011, 18) => x.max(y) as u32,
        (_, 0 | 16) => old.wrapping_add(operand),
        (_, 1) => old.min(operand),
        (_, 2) => old.max(operand),
        (_, 3) if old >= operand => 0,
        (_, 3) => old + 1,
        (_, 4) if old == 0 || old > operand => operand,
        (_, 4) => old - 1,
        (_, 5) => old & operand,
        (_, 6) => old | operand,
        _ => old ^ operand,
    }
}
