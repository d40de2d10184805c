//! A request body in pieces that are shared with whoever made it: nothing is copied to send it, or to send it once more.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The pieces that are still to be sent.
#[derive(Debug)]
pub(super) struct Pieces {
    rest: VecDeque<Bytes>,
    bytes: u64,
}

impl Pieces {
    pub(super) fn new(pieces: Vec<Bytes>) -> Pieces {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        Pieces { rest: pieces.into_iter().filter(|piece| !piece.is_empty()).collect(), bytes }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.rest.pop_front();
        self.bytes -= next.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    /// Exact, so that it goes out with a `Content-Length`.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}
