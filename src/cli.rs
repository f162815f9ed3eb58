//! Command lines.
pub mod hermes;
