//! What is remembered of profiles, bounded: the profile that was written to longest ago is forgotten first.

use std::collections::BTreeMap;
use std::sync::Arc;

/// So many profiles are remembered.
pub const MAX_MARKS: usize = 1024;

#[derive(Debug)]
pub(super) struct Marks<V> {
    entries: BTreeMap<Arc<str>, (u64, V)>,
    writes: u64,
}

impl<V> Default for Marks<V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), writes: 0 }
    }
}

impl<V: Default> Marks<V> {
    /// The profile's entry, made if need be.
    pub(super) fn write(&mut self, profile: &Arc<str>) -> &mut V {
        if self.entries.len() >= MAX_MARKS && !self.entries.contains_key(profile) {
            let oldest = self.entries.iter().min_by_key(|(_, (write, _))| *write).map(|(profile, _)| profile.clone());
            if let Some(oldest) = oldest {
                self.entries.remove(&oldest);
            }
        }
        self.writes += 1;
        let entry = self.entries.entry(profile.clone()).or_default();
        entry.0 = self.writes;
        &mut entry.1
    }

    pub(super) fn get(&self, profile: &str) -> Option<&V> {
        self.entries.get(profile).map(|(_, value)| value)
    }

    /// The entry as it is, without making it newer.
    pub(super) fn get_mut(&mut self, profile: &str) -> Option<&mut V> {
        self.entries.get_mut(profile).map(|(_, value)| value)
    }

    pub(super) fn forget(&mut self, profile: &str) {
        self.entries.remove(profile);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &V)> {
        self.entries.iter().map(|(profile, (_, value))| (profile, value))
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = (&Arc<str>, &mut V)> {
        self.entries.iter_mut().map(|(profile, (_, value))| (profile, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_written_to_longest_ago_is_forgotten_first() {
        let mut marks: Marks<u32> = Marks::default();
        let name = |n: usize| Arc::from(format!("p{n}"));
        (0..MAX_MARKS).for_each(|n| *marks.write(&name(n)) = 1);
        *marks.write(&name(0)) += 1;
        marks.write(&name(MAX_MARKS));
        assert_eq!(marks.iter().count(), MAX_MARKS);
        assert_eq!((marks.get("p0"), marks.get("p1")), (Some(&2), None));
    }
}
