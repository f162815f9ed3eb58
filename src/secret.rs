//! Secrets as types: never printed, compared in constant time.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;

macro_rules! secret {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Serialize, Deserialize)]
        pub struct $name(String);

        impl $name {
            /// Wraps a secret that came from outside.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// 256 fresh random bits, as 64 hex digits.
            ///
            /// # Errors
            /// The system has no randomness to give.
            pub fn random() -> std::io::Result<Self> {
                random_hex::<32>().map(Self)
            }

            /// The secret itself, for the one place that puts it on a wire.
            pub fn expose(&self) -> &str {
                &self.0
            }

            /// Whether nothing is in it.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                use zeroize::Zeroize;
                self.0.zeroize();
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
            }
        }
        impl Eq for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(redacted)"))
            }
        }
    };
}

secret!(
    /// What a caller shows to be let in: the session token or the control token.
    Token
);
secret!(
    /// The right to stop one process, issued by its fence.
    Permit
);

secret!(
    /// What a person answered: it may be a password.
    AnswerText
);

/// `N` random bytes as hex.
///
/// # Errors
/// The system has no randomness to give.
pub fn random_hex<const N: usize>() -> std::io::Result<String> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(hex(&bytes))
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        assert_eq!(format!("{:?}", Token::new("hunter2")), "Token(redacted)");
        assert_eq!(format!("{:?}", Permit::new("hunter2")), "Permit(redacted)");
    }

    #[test]
    fn random_secrets_have_256_bits_and_differ() {
        let (a, b) = (Permit::random().unwrap(), Permit::random().unwrap());
        assert_eq!(a.expose().len(), 64);
        assert_ne!(a, b);
    }
}
