//! The vfio-user protocol, server side: many hostile clients, bounded, non-blocking.
