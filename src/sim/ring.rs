//! State by a number that only grows: a queue whose front is dropped when it is over, so that memory follows what is open
//! and not what ever was.

use std::collections::{BTreeMap, VecDeque};

/// Values by growing number.
#[derive(Debug)]
pub(super) struct Ring<T> {
    base: u64,
    items: VecDeque<Option<T>>,
    /// Numbers far ahead of the others: a sound core has none, and a broken one must not cost memory.
    far: BTreeMap<u64, T>,
    open: usize,
}

/// A number so far ahead of the oldest open one is kept apart.
const FAR: usize = 1 << 20;

impl<T> Default for Ring<T> {
    fn default() -> Ring<T> {
        Ring { base: 0, items: VecDeque::new(), far: BTreeMap::new(), open: 0 }
    }
}

impl<T> Ring<T> {
    fn place(&self, id: u64) -> Option<usize> {
        usize::try_from(id.checked_sub(self.base)?).ok().filter(|at| *at < self.items.len())
    }

    /// Puts a value at a number that is not below those already dropped; false if it is, or if it is taken.
    pub(super) fn insert(&mut self, id: u64, value: T) -> bool {
        if self.items.is_empty() && id.saturating_sub(self.base) < FAR as u64 {
            self.base = self.base.max(id);
        }
        let Some(at) = id.checked_sub(self.base).and_then(|at| usize::try_from(at).ok()) else { return false };
        if at >= FAR {
            return self.far.insert(id, value).is_none();
        }
        while self.items.len() <= at {
            self.items.push_back(None);
        }
        if self.items[at].is_some() {
            return false;
        }
        self.items[at] = Some(value);
        self.open += 1;
        true
    }

    pub(super) fn get(&self, id: u64) -> Option<&T> {
        match self.place(id) {
            Some(at) => self.items[at].as_ref(),
            None => self.far.get(&id),
        }
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        match self.place(id) {
            Some(at) => self.items[at].as_mut(),
            None => self.far.get_mut(&id),
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        let Some(at) = self.place(id) else { return self.far.remove(&id) };
        let value = self.items[at].take()?;
        self.open -= 1;
        while self.items.front().is_some_and(Option::is_none) {
            self.items.pop_front();
            self.base += 1;
        }
        Some(value)
    }

    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.open + self.far.len()
    }

    /// What is open, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (self.base..)
            .zip(&self.items)
            .filter_map(|(id, item)| Some((id, item.as_ref()?)))
            .chain(self.far.iter().map(|(id, item)| (*id, item)))
    }

    /// What is open, in order, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        (self.base..)
            .zip(&mut self.items)
            .filter_map(|(id, item)| Some((id, item.as_mut()?)))
            .chain(self.far.iter_mut().map(|(id, item)| (*id, item)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_far_ahead_costs_nothing() {
        let mut ring = Ring::default();
        assert!(ring.insert(1, 'a') && ring.insert(1 << 60, 'b') && ring.insert(2, 'c'));
        assert_eq!((ring.len(), ring.items.len()), (3, 2));
        assert_eq!(ring.get(1 << 60), Some(&'b'));
        assert_eq!((ring.remove(1 << 60), ring.remove(1 << 60)), (Some('b'), None));
    }

    #[test]
    fn memory_follows_what_is_open() {
        let mut ring = Ring::default();
        for id in 1..=1_000 {
            assert!(ring.insert(id, id));
            if id > 3 {
                assert_eq!(ring.remove(id - 3), Some(id - 3));
            }
        }
        assert!(ring.items.len() <= 4, "{}", ring.items.len());
        assert_eq!((ring.len(), ring.get(1), ring.get(999)), (3, None, Some(&999)));
        assert!(!ring.insert(999, 0), "taken");
        assert!(!ring.insert(5, 0), "over");
        assert_eq!(ring.iter().map(|(id, _)| id).collect::<Vec<_>>(), [998, 999, 1_000]);
    }
}
