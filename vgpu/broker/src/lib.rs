//! The edges of the broker: event loop, sockets, mappings, and the card.
