//! What a guest's GPU is and what becomes of its memory: mediator and memory manager.
