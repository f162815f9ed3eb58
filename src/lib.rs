//! hermes: a control plane that makes backend children prove they are idle.

pub mod clock;
pub mod protocol;
pub mod secret;
pub mod verdict;
