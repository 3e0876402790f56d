//! Follows the card on behalf of its client: interrupts and the live windows.

use fermi_model::FermiModel;

use super::graphics::GraphicsCounts;
use super::live::LiveWindows;
use super::pins::Pins;
use super::vram::VramError;
use crate::running::Follower;

/// The parts of a card that belong to its client: the next client gets fresh ones.
#[derive(Default)]
pub(super) struct Front {
    pub(super) pins: Pins,
    /// `None` when every access is a message.
    pub(super) live: Option<LiveWindows>,
    /// Why the window could not follow. Client and model then see different VRAM, so the server ends.
    pub(super) failure: Option<VramError>,
    /// What was drawn before the card was last powered on, for all clients.
    pub(super) graphics: GraphicsCounts,
}

impl Follower for Front {
    fn update(&mut self, model: &mut FermiModel) {
        if let Some(live) = &mut self.live
            && self.failure.is_none()
        {
            self.failure = live.follow(model).err();
        }
        self.pins.update(model);
    }
}
