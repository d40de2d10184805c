//! The body of an answer.

use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;

use super::client::Link;
use super::decode::Decoder;
use super::fault::Fault;

/// What is read of a body that nobody wants, to keep its connection.
const RECYCLE_BYTES_MAX: usize = 64 * 1024;
/// How long its end is awaited.
const RECYCLE_WAIT: Duration = Duration::from_secs(1);

/// A body being read. Read to its end it gives the connection back; dropped before, it closes it.
pub struct Body {
    incoming: Incoming,
    link: Option<Link>,
    ended: bool,
    /// Under a content coding that is decoded here.
    decoder: Option<Box<Decoder>>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Body {
    pub(super) fn new(incoming: Incoming, link: Link, decoder: Option<Box<Decoder>>) -> Body {
        Body { incoming, link: Some(link), ended: false, decoder }
    }

    /// The next bytes, decoded; `None` at a proper end. Trailers are passed over.
    pub fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::result::Result<Bytes, Fault>>> {
        if self.decoder.is_none() {
            return self.poll_wire(cx);
        }
        loop {
            let Some(decoder) = &mut self.decoder else { return Poll::Ready(None) };
            let fault = match decoder.next() {
                Ok(Some(data)) => return Poll::Ready(Some(Ok(data))),
                Err(fault) => fault,
                Ok(None) => match self.poll_wire(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Some(Ok(data))) => {
                        if let Some(decoder) = &mut self.decoder {
                            decoder.push(data);
                        }
                        continue;
                    }
                    Poll::Ready(Some(Err(fault))) => fault,
                    Poll::Ready(None) => match self.decoder.take().map(|decoder| decoder.end()) {
                        None | Some(Ok(())) => return Poll::Ready(None),
                        Some(Err(fault)) => fault,
                    },
                },
            };
            // What follows could not be read.
            self.ended = true;
            self.link = None;
            self.decoder = None;
            return Poll::Ready(Some(Err(fault)));
        }
    }

    /// The next bytes as they came.
    fn poll_wire(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::result::Result<Bytes, Fault>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            let Some(link) = &mut self.link else { return Poll::Ready(None) };
            return match link.poll_frame(cx, &mut self.incoming) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => continue,
                    Ok(data) => Poll::Ready(Some(Ok(data))),
                    Err(_) => continue,
                },
                Poll::Ready(Some(Err(e))) => {
                    self.ended = true;
                    self.link = None;
                    Poll::Ready(Some(Err(Fault::exchange(&e))))
                }
                Poll::Ready(None) => {
                    self.ended = true;
                    if let Some(link) = self.link.take() {
                        link.give_back();
                    }
                    Poll::Ready(None)
                }
            };
        }
    }

    /// The next bytes; `None` at a proper end.
    ///
    /// # Errors
    /// What broke.
    pub async fn data(&mut self) -> Option<std::result::Result<Bytes, Fault>> {
        std::future::poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Nothing more of this body is wanted, but its end is near: reads on in the background (at most 64 KiB and one second)
    /// so that the connection can be used again.
    pub fn recycle(mut self) {
        if self.ended || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        tokio::spawn(async move {
            let rest = async {
                let mut read = 0;
                while let Some(Ok(data)) = self.data().await {
                    read += data.len();
                    if read > RECYCLE_BYTES_MAX {
                        return;
                    }
                }
            };
            let _ = tokio::time::timeout(RECYCLE_WAIT, rest).await;
        });
    }

    /// The whole rest, if it is not longer than `limit` bytes.
    ///
    /// # Errors
    /// What broke; `Ok(Err(..))` holds what was read until the limit was passed, and the connection is closed.
    pub async fn whole(mut self, limit: usize) -> std::result::Result<std::result::Result<Vec<u8>, Vec<u8>>, Fault> {
        let mut all = Vec::new();
        while let Some(data) = self.data().await {
            let data = data?;
            let room = limit - all.len();
            if data.len() > room {
                all.extend_from_slice(data.get(..room).unwrap_or_default());
                return Ok(Err(all));
            }
            all.extend_from_slice(&data);
        }
        Ok(Ok(all))
    }
}
