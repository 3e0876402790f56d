//! `vramd bind` and `vramd unbind`: a card of this host from its driver to VFIO, and back.

use std::io::Write as _;

use anyhow::{Context as _, bail};
use broker::{PciAddress, PciFunction, VFIO_DRIVER};

#[derive(clap::Parser, Debug)]
pub(super) struct Arguments {
    /// PCI address of the card, such as 0000:01:00.0, or of another function in its IOMMU group
    #[arg(value_name = "ADDRESS")]
    at: PciAddress,
}

/// Gives the function to VFIO.
pub(super) fn bind(arguments: &Arguments) -> anyhow::Result<u8> {
    let function = PciFunction::find(arguments.at)?;
    let before = function.driver_name().to_owned();
    if function.driver.as_deref() == Some(VFIO_DRIVER) {
        return tell(&format!("{} is bound to {VFIO_DRIVER} already", function.at));
    }
    function.check_is_of_a_card()?;
    let after = rebind(&function, Some(VFIO_DRIVER))?;
    if after.driver.as_deref() != Some(VFIO_DRIVER) {
        bail!(
            "{} is bound to {} and not to {VFIO_DRIVER}: is the module loaded (modprobe vfio-pci), and is there an IOMMU?",
            after.at,
            after.driver_name()
        );
    }
    tell(&format!(
        "{} was bound to {before}, is bound to {VFIO_DRIVER}",
        after.at
    ))
}

/// Gives the function to whichever driver the host would choose.
pub(super) fn unbind(arguments: &Arguments) -> anyhow::Result<u8> {
    let function = PciFunction::find(arguments.at)?;
    if function
        .driver
        .as_deref()
        .is_some_and(|driver| driver != VFIO_DRIVER)
    {
        return tell(&format!("{} is bound to {}", function.at, function.driver_name()));
    }
    let after = rebind(&function, None)?;
    tell(&format!("{} is bound to {}", after.at, after.driver_name()))
}

fn rebind(function: &PciFunction, driver: Option<&str>) -> anyhow::Result<PciFunction> {
    let rebound = function.rebind(driver);
    rebound.context("which takes root and a /sys that may be written")
}

fn tell(line: &str) -> anyhow::Result<u8> {
    writeln!(std::io::stdout(), "{line}").context("cannot write to stdout")?;
    Ok(0)
}
