//! The toxics, one file each. A toxic on one direction of one connection is a [`Stage`]: a small machine without sockets
//! or clocks. Items go in, items come out, and between them it says until when it wants to wait. [`chain::Chain`] puts
//! stages in a row. Nothing here can block, which is why a toxic can always be taken away, whatever the peers do.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod bandwidth;
pub mod chain;
pub mod cut_after;
pub mod held;
pub mod http;
pub mod latency;
pub mod limit_data;
pub mod reset_peer;
pub mod slicer;
pub mod slow_close;
pub mod spec;
pub mod sse;
pub mod timeout;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::units::Ts;
pub use spec::Spec;

/// How a connection is ended by a toxic: on both of its sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// A regular close, after what was let through has been handed over.
    Fin,
    /// A reset (`SO_LINGER` 0).
    Rst,
}

/// What travels through a direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Bytes, and when they arrived at this point.
    Data {
        /// The bytes; never empty.
        bytes: Bytes,
        /// Arrival.
        at: Ts,
    },
    /// The sender has shut its side (a FIN); the other direction goes on.
    Eof,
    /// The connection ends here.
    End(End),
}

impl Item {
    /// Bytes held by it.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Item::Data { bytes, .. } => bytes.len(),
            Item::Eof | Item::End(_) => 0,
        }
    }

    /// It carries no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a stage has to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    /// The next item.
    Item(Item),
    /// Nothing before this point, or before something else happens.
    Wait(Option<Ts>),
}

/// One toxic on one direction of one connection.
pub trait Stage: Send + std::fmt::Debug {
    /// It takes another item now. A stage without room makes the sender wait (the socket is not read).
    fn room(&self) -> bool;
    /// Takes an item. Called without room only when a toxic before it is removed; what that held is bounded.
    fn push(&mut self, item: Item, now: Ts);
    /// Gives the next item, or says until when to wait.
    fn pull(&mut self, now: Ts) -> Pull;
    /// The attributes were changed.
    fn update(&mut self, spec: &Spec, now: Ts);
    /// The toxic was removed: everything held, in order.
    fn remove(self: Box<Self>) -> Vec<Item>;
}
