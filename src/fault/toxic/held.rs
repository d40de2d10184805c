//! A bounded first-in first-out store of items.

use std::collections::VecDeque;

use super::Item;

/// Items that one store takes at most before it asks the sender to wait. Small chunks cost more than their bytes.
const ITEMS_MAX: usize = 4096;

/// A bounded queue of items.
#[derive(Debug)]
pub struct Held {
    items: VecDeque<Item>,
    bytes: usize,
    window_bytes: usize,
}

impl Held {
    /// An empty one that asks for a pause once it holds `window_bytes`.
    #[must_use]
    pub fn new(window_bytes: usize) -> Held {
        Held { items: VecDeque::new(), bytes: 0, window_bytes }
    }

    /// Less is held than the window.
    #[must_use]
    pub fn room(&self) -> bool {
        self.bytes < self.window_bytes && self.items.len() < ITEMS_MAX
    }

    /// Puts an item at the end.
    pub fn push(&mut self, item: Item) {
        self.bytes += item.len();
        self.items.push_back(item);
    }

    /// Puts an item back in front.
    pub fn push_front(&mut self, item: Item) {
        self.bytes += item.len();
        self.items.push_front(item);
    }

    /// Takes the first item.
    pub fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        self.bytes -= item.len();
        Some(item)
    }

    /// The first item.
    #[must_use]
    pub fn front(&self) -> Option<&Item> {
        self.items.front()
    }

    /// Nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// All items, in order.
    #[must_use]
    pub fn into_items(self) -> Vec<Item> {
        self.items.into()
    }
}
