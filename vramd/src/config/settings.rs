//! `[gpu.settings]`: numbers of the memory manager. Which there are is known to [`Setting::ALL`] alone.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;
use vgpu::{GpuConfig, Setting, SettingUnit};

use sizes::{Size, parse_size};
use vramd_vm::config::Wrong;

/// Units of time with their nanoseconds. A unit that another one ends with comes after that.
const UNITS: [(&str, u64); 3] = [("ms", 1_000_000), ("us", 1_000), ("s", 1_000_000_000)];

/// The table as it is written.
pub(super) type RawSettings = BTreeMap<Spanned<String>, Spanned<RawValue>>;

/// What may stand behind a key.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a setting is a whole number, or a text such as \"150ms\" or \"8M\""
)]
pub(super) enum RawValue {
    Number(u64),
    Text(String),
}

/// Sets what the table names.
pub(super) fn apply(table: RawSettings, config: &mut GpuConfig) -> Result<(), Wrong> {
    for (key, value) in table {
        let field = format!("gpu.settings.{}", key.get_ref());
        let Some(setting) = Setting::named(key.get_ref()) else {
            let names = Setting::ALL.map(|setting| setting.name).join(", ");
            let reason = format!("there is no such setting; there are {names}");
            return Err(Wrong::new(key.span(), field, reason));
        };
        let span = value.span();
        let number =
            read(setting.unit, value.get_ref()).map_err(|reason| Wrong::new(span.clone(), &field, reason))?;
        if !setting.set(config, number) {
            let [least, most] = setting.bounds.map(|bound| show(setting.unit, bound));
            let reason = format!("{} is not from {least} to {most}", show(setting.unit, number));
            return Err(Wrong::new(span, field, reason));
        }
    }
    Ok(())
}

fn read(unit: SettingUnit, value: &RawValue) -> Result<u64, String> {
    match (unit, value) {
        (SettingUnit::Number | SettingUnit::Size, RawValue::Number(number)) => Ok(*number),
        (SettingUnit::Number, RawValue::Text(text)) => Err(format!("{text:?} is not a number")),
        (SettingUnit::Size, RawValue::Text(text)) => parse_size(text).map_err(|error| error.to_string()),
        (SettingUnit::Time, RawValue::Text(text)) => {
            parse_time(text).ok_or_else(|| format!("{text:?} is not a time such as 150ms, 500us or 2s"))
        }
        (SettingUnit::Time, RawValue::Number(number)) => Err(format!(
            "{number} has no unit; a time is written as 150ms, 500us or 2s"
        )),
    }
}

/// Nanoseconds; `None` if it is no time, or one beyond 64 bits.
fn parse_time(text: &str) -> Option<u64> {
    let (number, factor) = UNITS
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let is_digits = number.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| number.parse::<u64>().ok()?.checked_mul(factor))?
}

fn show(unit: SettingUnit, number: u64) -> String {
    match unit {
        SettingUnit::Number => number.to_string(),
        SettingUnit::Size => Size(number).to_string(),
        SettingUnit::Time if number.is_multiple_of(1_000_000) => format!("{}ms", number / 1_000_000),
        SettingUnit::Time => format!("{}us", number / 1_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit_only() {
        let times = ["150ms", "500us", "2s", "0ms"].map(parse_time);
        assert_eq!(
            times,
            [Some(150_000_000), Some(500_000), Some(2_000_000_000), Some(0)]
        );
        let others = ["", "ms", "5", "-1ms", "1.5s", "5 ms", "99999999999999s", "1ns"].map(parse_time);
        assert_eq!(others, [None; 8]);
    }

    #[test]
    fn every_setting_reads_its_bounds_as_they_are_shown() {
        for setting in Setting::ALL {
            for bound in setting.bounds {
                let text = show(setting.unit, bound);
                let value = match setting.unit {
                    SettingUnit::Number => RawValue::Number(bound),
                    SettingUnit::Size | SettingUnit::Time => RawValue::Text(text),
                };
                assert_eq!(read(setting.unit, &value), Ok(bound), "{}", setting.name);
                assert!(setting.set(&mut GpuConfig::default(), bound), "{}", setting.name);
            }
        }
    }
}
