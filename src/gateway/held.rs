//! What holds now, until something else takes its place. Readers keep what they took.

use std::sync::{Arc, PoisonError, RwLock};

/// A value that a reload replaces as a whole.
#[derive(Debug, Default)]
pub struct Held<T: ?Sized>(RwLock<Arc<T>>);

impl<T: ?Sized> Held<T> {
    /// With this value.
    #[must_use]
    pub fn new(value: impl Into<Arc<T>>) -> Held<T> {
        Held(RwLock::new(value.into()))
    }

    /// What holds now. Whoever needs it more than once takes it once.
    #[must_use]
    pub fn now(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Another holds from now on.
    pub fn hold(&self, value: impl Into<Arc<T>>) {
        let next = value.into();
        let before = std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), next);
        // Outside the lock: it may be the last of a large one.
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_took_the_one_before_keeps_it() {
        let held: Held<str> = Held::new("one");
        let taken = held.now();
        held.hold("two");
        assert_eq!((&*taken, &*held.now()), ("one", "two"));
    }
}
