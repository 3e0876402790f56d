//! `vramd`, the program that joins brokers, cards and VMs: its command line ([`cli`]), configuration, demo and tools.

pub mod cli;
pub mod config;
mod confinement;
mod control;
pub mod demo;
mod descriptors;
mod doctor;
pub mod firmware;
pub mod host;
mod journal;
mod keeper;
mod kernel;
mod local_link;
mod notify;
mod observe;
mod sockets;

pub use control::WithinProcess;
pub use local_link::BrokerLink;
