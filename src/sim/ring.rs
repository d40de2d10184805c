//! State by a number that only grows: a queue whose front is dropped when it is over, so that memory follows what is open
//! and not what ever was.

use std::collections::VecDeque;

/// Values by growing number.
#[derive(Debug)]
pub(super) struct Ring<T> {
    base: u64,
    items: VecDeque<Option<T>>,
    open: usize,
}

impl<T> Default for Ring<T> {
    fn default() -> Ring<T> {
        Ring { base: 0, items: VecDeque::new(), open: 0 }
    }
}

impl<T> Ring<T> {
    fn place(&self, id: u64) -> Option<usize> {
        usize::try_from(id.checked_sub(self.base)?).ok().filter(|at| *at < self.items.len())
    }

    /// Puts a value at a number that is not below those already dropped; false if it is, or if it is taken.
    pub(super) fn insert(&mut self, id: u64, value: T) -> bool {
        if self.items.is_empty() {
            self.base = self.base.max(id);
        }
        let Some(at) = id.checked_sub(self.base).and_then(|at| usize::try_from(at).ok()) else { return false };
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
        self.items[self.place(id)?].as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        let at = self.place(id)?;
        self.items[at].as_mut()
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        let at = self.place(id)?;
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
        self.open
    }

    /// What is open, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (self.base..).zip(&self.items).filter_map(|(id, item)| Some((id, item.as_ref()?)))
    }

    /// What is open, in order, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        (self.base..).zip(&mut self.items).filter_map(|(id, item)| Some((id, item.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
