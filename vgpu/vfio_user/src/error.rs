//! The mistakes that a client can make, the answer to each, and whether the client may stay.

use crate::Errno;
use crate::bounds::{
    DATA_BYTES_MAX, DMA_BYTES_MAX, DMA_FILES_MAX, MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX, MULTI_WRITES_MAX,
};
use crate::message::CommandCode;

/// A message that breaks the protocol or a bound.
///
/// It becomes an error reply with [`ProtocolError::errno`]; if `ProtocolError::is_fatal`, the connection is
/// closed after it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The size field does not even cover the header.
    #[error("message size {bytes} is below the size of the header")]
    SizeBelowHeader {
        /// The size field.
        bytes: u32,
    },
    /// The size field is above what this server takes.
    #[error("message size {bytes} is above the bound of {MESSAGE_BYTES_MAX}")]
    SizeAboveBound {
        /// The size field.
        bytes: u32,
    },
    /// A reply, or a type that does not exist: this server expects commands only.
    #[error("flags {flags:#x} do not make a command")]
    NotACommand {
        /// The flags field.
        flags: u32,
    },
    /// More descriptors than announced came with one message.
    #[error("more than {MESSAGE_FDS_MAX} file descriptors in one message")]
    TooManyDescriptors,
    /// The stream ended or was cut while descriptors were received.
    #[error("file descriptors of a message were lost on the way")]
    DescriptorsLost,
    /// Something came before VERSION.
    #[error("command {command} came before the version was negotiated")]
    NotNegotiated {
        /// The command field.
        command: u16,
    },
    /// VERSION came twice.
    #[error("the version is negotiated already")]
    AlreadyNegotiated,
    /// Only major version 0 is served.
    #[error("protocol version {major}.{minor} is not served")]
    UnsupportedVersion {
        /// Major version that the client proposes.
        major: u16,
        /// Minor version that the client proposes.
        minor: u16,
    },
    /// The capabilities are no NUL-terminated JSON of the form that the specification gives.
    #[error("version data is not NUL-terminated JSON of the specified form")]
    MalformedVersionData,
    /// A command without meaning here.
    #[error("command {command} is not served")]
    UnsupportedCommand {
        /// The command field.
        command: u16,
    },
    /// The body is shorter than its fixed part, or not as long as it says.
    #[error("the body of {command:?} has a wrong length of {bytes} bytes")]
    BodyLength {
        /// Command that was decoded.
        command: CommandCode,
        /// Length of the body as received.
        bytes: usize,
    },
    /// `argsz` leaves no room for the fixed part of the reply.
    #[error("argsz {bytes} of {command:?} is too small")]
    ReplySpace {
        /// Command that was decoded.
        command: CommandCode,
        /// The argsz field.
        bytes: u32,
    },
    /// Bits are set that have no meaning, or that exclude each other.
    #[error("flags {flags:#x} of {command:?} are unknown or exclude each other")]
    Flags {
        /// Command that was decoded.
        command: CommandCode,
        /// The flags field.
        flags: u32,
    },
    /// The command takes another number of descriptors.
    #[error("{command:?} does not take {count} file descriptors")]
    DescriptorCount {
        /// Command that was decoded.
        command: CommandCode,
        /// Number of descriptors received.
        count: usize,
    },
    /// No such region or interrupt index.
    #[error("index {index} of {command:?} does not exist")]
    Index {
        /// Command that was decoded.
        command: CommandCode,
        /// The index or region field.
        index: u32,
    },
    /// A transfer of no bytes or of more than announced.
    #[error("a transfer of {count} bytes is not between 1 and {DATA_BYTES_MAX}")]
    TransferSize {
        /// The count field.
        count: u32,
    },
    /// More writes than a batch may have.
    #[error("a batch of {count} writes is not between 1 and {MULTI_WRITES_MAX}")]
    BatchSize {
        /// The wr_cnt field.
        count: u64,
    },
    /// The transfer leaves its region.
    #[error("{count} bytes at {offset:#x} are not inside region {region}")]
    OutsideRegion {
        /// Index of the region.
        region: u32,
        /// First byte in the region.
        offset: u64,
        /// Length in bytes.
        count: u32,
    },
    /// The region cannot be read, or cannot be written.
    #[error("region {region} does not allow this access")]
    RegionAccess {
        /// Index of the region.
        region: u32,
    },
    /// Vectors that the index does not have.
    #[error("vectors {start}..+{count} of interrupt index {index} do not exist")]
    Vectors {
        /// Index of the interrupts.
        index: u32,
        /// First vector asked for.
        start: u32,
        /// Number of vectors.
        count: u32,
    },
    /// A descriptor that is not an event counter: writing to it could block this process.
    #[error("the descriptor for an interrupt is not an eventfd")]
    NotAnEvent,
    /// The device cannot be reset.
    #[error("the device has no reset")]
    NoReset,
    /// A DMA map or unmap was refused.
    #[error(transparent)]
    Dma(#[from] DmaError),
}

/// Why a DMA map or unmap was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DmaError {
    /// The range has no bytes.
    #[error("the DMA range has no bytes")]
    Empty,
    /// Address, offset or length is no multiple of the page size.
    #[error("DMA range {iova:#x}..+{bytes:#x} or its offset is not page-aligned")]
    Misaligned {
        /// First DMA address.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The range, or the range in the file, ends beyond the last address.
    #[error("DMA range {iova:#x}..+{bytes:#x} wraps around")]
    WrapsAround {
        /// First DMA address.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Part of the range is mapped already.
    #[error("DMA range {iova:#x}..+{bytes:#x} overlaps a mapped one")]
    Overlaps {
        /// First DMA address.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The bound on the number of maps is reached.
    #[error(
        "more DMA maps than are allowed: a guest with an IOMMU of its own has one for each page that its devices reach"
    )]
    TooManyMaps,
    /// The bound on the number of files is reached.
    #[error("more than {DMA_FILES_MAX} files behind DMA maps")]
    TooManyFiles,
    /// The bound on mapped bytes is reached.
    #[error("more than {DMA_BYTES_MAX:#x} bytes of DMA maps")]
    TooManyBytes,
    /// The range ends beyond the file, so that touching it would raise SIGBUS.
    #[error("the file has {file_bytes:#x} bytes, the map ends at {end:#x}")]
    BeyondFile {
        /// Size of the file.
        file_bytes: u64,
        /// End of the mapped range in the file.
        end: u64,
    },
    /// The descriptor is no memory file (memfd, tmpfs, hugetlbfs).
    #[error("the descriptor is not a memory file (memfd, tmpfs or hugetlbfs)")]
    NotMemory,
    /// The descriptor does not allow the access that the map asks for.
    #[error("the descriptor does not allow the access that is asked for")]
    Access,
    /// No map, or a map only in part, lies in the range to unmap.
    #[error("DMA range {iova:#x}..+{bytes:#x} is not made of whole maps")]
    NotMapped {
        /// First DMA address.
        iova: u64,
        /// Length in bytes.
        bytes: u64,
    },
}

impl ProtocolError {
    /// The error number of the reply. `README.md` has the table.
    pub fn errno(&self) -> Errno {
        match self {
            Self::SizeAboveBound { .. } | Self::TooManyDescriptors => Errno::MSGSIZE,
            Self::UnsupportedCommand { .. } | Self::NoReset => Errno::OPNOTSUPP,
            Self::UnsupportedVersion { .. } => Errno::PROTONOSUPPORT,
            Self::NotNegotiated { .. } => Errno::PROTO,
            Self::AlreadyNegotiated => Errno::ALREADY,
            Self::RegionAccess { .. } => Errno::ACCESS,
            Self::NotAnEvent => Errno::BADF,
            Self::Dma(error) => error.errno(),
            Self::SizeBelowHeader { .. }
            | Self::NotACommand { .. }
            | Self::DescriptorsLost
            | Self::MalformedVersionData
            | Self::BodyLength { .. }
            | Self::ReplySpace { .. }
            | Self::Flags { .. }
            | Self::DescriptorCount { .. }
            | Self::Index { .. }
            | Self::TransferSize { .. }
            | Self::BatchSize { .. }
            | Self::OutsideRegion { .. }
            | Self::Vectors { .. } => Errno::INVAL,
        }
    }

    /// Whether the connection ends with this: the stream has lost its frame, or no session came about.
    ///
    /// A malformed VERSION is fatal too, which only the negotiation can tell: see
    /// [`ProtocolError::is_fatal_for`].
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::SizeBelowHeader { .. }
                | Self::SizeAboveBound { .. }
                | Self::NotACommand { .. }
                | Self::TooManyDescriptors
                | Self::DescriptorsLost
                | Self::NotNegotiated { .. }
                | Self::UnsupportedVersion { .. }
                | Self::MalformedVersionData
        )
    }

    /// As [`ProtocolError::is_fatal`], for a session that has (`is_negotiated`) or has not begun.
    ///
    /// Before the negotiation every error ends the connection: there is nothing to stay for.
    pub(crate) fn is_fatal_for(&self, is_negotiated: bool) -> bool {
        !is_negotiated || self.is_fatal()
    }
}

impl DmaError {
    /// The error number of the reply.
    pub fn errno(&self) -> Errno {
        match self {
            // The specification demands this one.
            Self::Overlaps { .. } => Errno::EXIST,
            Self::TooManyMaps | Self::TooManyBytes => Errno::NOSPC,
            Self::TooManyFiles => Errno::MFILE,
            Self::NotMapped { .. } => Errno::NOENT,
            Self::NotMemory => Errno::BADF,
            Self::Access => Errno::ACCESS,
            Self::Empty | Self::Misaligned { .. } | Self::WrapsAround { .. } | Self::BeyondFile { .. } => {
                Errno::INVAL
            }
        }
    }
}

/// Why a client is gone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The client closed its end.
    #[error("the client closed the connection")]
    HungUp,
    /// The client closed its end in the middle of a message.
    #[error("the client closed the connection within a message")]
    TornMessage,
    /// The client broke the protocol in a way that ends the session.
    #[error("protocol violation")]
    Protocol(#[source] ProtocolError),
    /// The socket failed.
    #[error("the socket failed")]
    Socket(#[source] std::io::Error),
}

/// An answer that does not fit its request: a mistake of the embedder, never of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The request was answered already, is another client's, or its client is gone.
    #[error("request {0} does not wait for an answer")]
    NotWaiting(u64),
    /// A read must be answered with its bytes, every other request without.
    #[error("request {0} wants another kind of answer")]
    WrongKind(u64),
    /// The answer has another number of bytes than the request asked for.
    #[error("request {request} asked for {expected} bytes and is given {given}")]
    WrongLength {
        /// Id of the request.
        request: u64,
        /// Bytes asked for.
        expected: usize,
        /// Bytes that the embedder gave.
        given: usize,
    },
}
