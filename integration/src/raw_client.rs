//! Messages as bytes, for what no VMM sends.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use vmm_sys_util::sock_ctrl_msg::ScmSocket as _;

use crate::commands::{DMA_MAP, REGION_READ, REGION_WRITE, VERSION};

// Commands of this client alone.
pub(crate) const RESET: u16 = 13;
const REGION_WRITE_MULTI: u16 = 15;
const HEADER_BYTES: usize = 16;
/// Longest wait for a reply; longer than any that the broker may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that writes its messages itself.
pub(crate) struct RawClient {
    stream: UnixStream,
    id: u16,
}

impl RawClient {
    /// Connects and agrees on the version.
    ///
    /// # Errors
    /// The broker does not answer, or refuses.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).context("cannot connect")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut client = Self { stream, id: 0 };
        client.send(VERSION, &[0, 0, 1, 0], &[])?;
        let error = client.reply()?;
        ensure!(error == 0, "the broker refused the version with {error}");
        Ok(client)
    }

    /// Sends a message without waiting for the answer, with descriptors for it; its id.
    ///
    /// # Errors
    /// The broker hung up, or takes nothing.
    pub(crate) fn send(&mut self, command: u16, body: &[u8], files: &[OwnedFd]) -> Result<u16> {
        self.id = self.id.wrapping_add(1);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend(self.id.to_le_bytes());
        bytes.extend(command.to_le_bytes());
        bytes.extend((HEADER_BYTES as u32 + body.len() as u32).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        if files.is_empty() {
            self.stream.write_all(&bytes)?;
        } else {
            let raw: Vec<_> = files.iter().map(OwnedFd::as_raw_fd).collect();
            let sent = self.stream.send_with_fds(&[bytes.as_slice()], &raw)?;
            ensure!(
                sent == bytes.len(),
                "only {sent} of {} bytes were taken",
                bytes.len()
            );
        }
        Ok(self.id)
    }

    /// The next message of the broker: its id, its error number (0 for none), and what follows its header.
    ///
    /// # Errors
    /// The broker hung up, or does not answer.
    pub(crate) fn next(&mut self) -> Result<(u16, u32, Vec<u8>)> {
        let mut words = [[0; 4]; HEADER_BYTES / 4];
        for word in &mut words {
            self.stream.read_exact(word)?;
        }
        let [id, bytes, _, error] = words.map(u32::from_le_bytes);
        let mut rest = vec![0; (bytes as usize).saturating_sub(HEADER_BYTES)];
        self.stream.read_exact(&mut rest)?;
        Ok((id as u16, error, rest))
    }

    /// The error number of the next reply, 0 for none.
    ///
    /// # Errors
    /// The broker hung up, or does not answer.
    pub(crate) fn reply(&mut self) -> Result<u32> {
        self.next().map(|(_, error, _)| error)
    }

    /// Offers memory without waiting for the answer.
    pub(crate) fn map(&mut self, iova: u64, bytes: u64, files: &[OwnedFd]) -> Result<()> {
        let mut body = Vec::new();
        body.extend(32u32.to_le_bytes());
        body.extend(3u32.to_le_bytes());
        body.extend([0, iova, bytes].iter().flat_map(|word| word.to_le_bytes()));
        self.send(DMA_MAP, &body, files)?;
        Ok(())
    }

    /// Asks for `bytes` bytes of a region, without waiting for the answer.
    pub(crate) fn read(&mut self, region: u32, offset: u64, bytes: u32) -> Result<()> {
        let mut body = offset.to_le_bytes().to_vec();
        body.extend(region.to_le_bytes());
        body.extend(bytes.to_le_bytes());
        self.send(REGION_READ, &body, &[])?;
        Ok(())
    }

    /// Stores to a region, without waiting for the answer.
    pub(crate) fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        let mut body = offset.to_le_bytes().to_vec();
        body.extend(region.to_le_bytes());
        body.extend((data.len() as u32).to_le_bytes());
        body.extend(data);
        self.send(REGION_WRITE, &body, &[])?;
        Ok(())
    }

    /// Stores words to BAR0 in one message, without waiting for the answer.
    pub(crate) fn write_many(&mut self, stores: &[(u32, u32)]) -> Result<()> {
        let mut body = (stores.len() as u64).to_le_bytes().to_vec();
        for (offset, value) in stores {
            body.extend(u64::from(*offset).to_le_bytes());
            body.extend([0u32, 4].iter().flat_map(|word| word.to_le_bytes()));
            body.extend(u64::from(*value).to_le_bytes());
        }
        self.send(REGION_WRITE_MULTI, &body, &[])?;
        Ok(())
    }
}
