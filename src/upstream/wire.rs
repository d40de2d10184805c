//! Connections: one that carries a request at a time (HTTP/1.1), and one that carries many (HTTP/2).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::AbortHandle;

use super::bell::Bell;
use super::fault::{Fault, FaultKind};
use super::pieces::Pieces;
use super::stream::{Counted, Stream as Socket};

/// Requests at once on one HTTP/2 connection, the least that RFC 9113 recommends a server to allow; fewer where it allows fewer.
/// More get another connection.
pub(super) const STREAMS_MAX: usize = 100;
/// What may be on its way of one answer that its client does not read. All streams together stay below the connection's own
/// window, so that slow clients never hold up the others on it.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;

/// A connection with room for a request.
pub(super) enum Wire {
    One(One),
    Many(Place),
}

/// HTTP/1.1. It is driven by whoever has it, and while it is idle only when the pool looks at it: between a task of its own and the one that waits
/// for what it brings every piece of an answer would be a word from one to the other. Dropping it closes the socket at once.
pub(super) struct One {
    pub(super) sender: http1::SendRequest<Pieces>,
    connection: Pin<Box<http1::Connection<TokioIo<Counted>, Pieces>>>,
    /// The connection has come to its end.
    over: bool,
    pub(super) born: Instant,
    /// Bytes read so far.
    pub(super) read: Arc<AtomicU64>,
    /// Rings where there is something to do on it for whoever reads an answer.
    bell: Bell,
    /// The thread that hears of its socket: where threads have runtimes of their own, a request there need wake no other.
    home: ThreadId,
}

impl One {
    /// This thread hears of its socket.
    pub(super) fn at_home(&self) -> bool {
        self.home == std::thread::current().id()
    }

    /// Does what can be done on it now: writes, reads, hears of its end.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        self.over = self.over || self.connection.as_mut().poll(cx).is_ready();
    }

    /// The next frame of an answer, once it is there.
    pub(super) fn poll_frame(
        &mut self,
        cx: &Context<'_>,
        incoming: &mut Incoming,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let One { connection, over, bell, .. } = self;
        bell.poll(cx, |cx| {
            *over = *over || connection.as_mut().poll(cx).is_ready();
            Pin::new(&mut *incoming).poll_frame(cx)
        })
    }

    /// It stands, and may carry a request now.
    pub(super) fn ready(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        !self.over && self.sender.is_ready()
    }

    /// Waits until it may carry a request; false: it never will.
    pub(super) async fn until_ready(&mut self) -> bool {
        std::future::poll_fn(|cx| {
            self.drive(cx);
            if self.over { Poll::Ready(false) } else { self.sender.poll_ready(cx).map(|ready| ready.is_ok()) }
        })
        .await
    }

    /// It has come to its end.
    pub(super) fn over(&self) -> bool {
        self.over
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(&mut self, request: Request<Pieces>) -> hyper::Result<Response<Incoming>> {
        let One { sender, connection, over, bell, .. } = self;
        let mut answer = std::pin::pin!(sender.send_request(request));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            *over = *over || connection.as_mut().poll(cx).is_ready();
            answer.as_mut().poll(cx)
        })
        .await
        // What this task was to be told of, nobody else has heard.
        .inspect(|_| bell.ring())
    }
}

/// HTTP/2. It closes once the pool has let it go and its last request is over.
pub(super) struct Many {
    sender: http2::SendRequest<Pieces>,
    task: AbortHandle,
    /// What its task drives, until its end; it knows how many requests at once the peer allows.
    driven: Arc<Mutex<Option<Driven>>>,
    pub(super) born: Instant,
    read: Arc<AtomicU64>,
    used: Mutex<Used>,
}

type Driven = Pin<Box<http2::Connection<TokioIo<Counted>, Pieces, TokioExecutor>>>;

struct Used {
    places: usize,
    /// Since when it has none in use.
    idle_since: Instant,
}

impl Drop for Many {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Many {
    fn used(&self) -> std::sync::MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place on it, if there is one.
    pub(super) fn place(self: &Arc<Many>) -> Option<Place> {
        let mut used = self.used();
        if used.places >= self.allowed() {
            return None;
        }
        let alone = used.places == 0;
        used.places += 1;
        drop(used);
        Some(Place { alone, read_before: self.read.load(Ordering::Relaxed), of: Arc::clone(self) })
    }

    fn allowed(&self) -> usize {
        let driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        driven.as_ref().map_or(0, |d| d.current_max_send_streams().min(STREAMS_MAX))
    }

    /// Places that are left on it.
    pub(super) fn room(&self) -> usize {
        self.allowed().saturating_sub(self.used().places)
    }

    /// How long nobody has used it; `None`: it is in use.
    pub(super) fn idle(&self) -> Option<Duration> {
        let used = self.used();
        (used.places == 0).then(|| used.idle_since.elapsed())
    }

    /// The peer has closed it, or takes nothing more on it.
    pub(super) fn closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// A place for one request on a connection of many.
pub(super) struct Place {
    of: Arc<Many>,
    alone: bool,
    read_before: u64,
}

impl Place {
    /// To send on.
    pub(super) fn sender(&self) -> http2::SendRequest<Pieces> {
        self.of.sender.clone()
    }

    /// Nobody else used the connection when this began, and nothing has been read on it since.
    pub(super) fn untouched(&self) -> bool {
        self.alone && self.of.read.load(Ordering::Relaxed) == self.read_before
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut used = self.of.used();
        used.places = used.places.saturating_sub(1);
        if used.places == 0 {
            used.idle_since = Instant::now();
        }
    }
}

/// A new connection in the words that were agreed on.
pub(super) enum Made {
    One(One),
    Many(Arc<Many>),
}

/// Begins to speak on a connection that stands.
pub(super) async fn speak(socket: Socket, http2: bool) -> Result<Made, Fault> {
    let read = Arc::new(AtomicU64::new(0));
    let io = TokioIo::new(Counted { inner: socket, read: Arc::clone(&read) });
    let failed = |e: hyper::Error| Fault::new(FaultKind::Connect, e);
    let born = Instant::now();
    if !http2 {
        let (sender, connection) = http1::Builder::new().handshake(io).await.map_err(failed)?;
        let (connection, bell, home) = (Box::pin(connection), Bell::new(), std::thread::current().id());
        return Ok(Made::One(One { sender, connection, over: false, born, read, bell, home }));
    }
    // The end of its task is seen by everyone who needs to: the sender turns closed, the body fails.
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let (sender, connection) = builder.handshake(io).await.map_err(failed)?;
    let driven: Arc<Mutex<Option<Driven>>> = Arc::new(Mutex::new(Some(Box::pin(connection))));
    let drives = Arc::clone(&driven);
    let drive = std::future::poll_fn(move |cx| {
        let mut driven = drives.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = driven.as_mut() else { return Poll::Ready(()) };
        let over = connection.as_mut().poll(cx).map(drop);
        if over.is_ready() {
            // Requests that wait in it hear of its end by this.
            *driven = None;
        }
        over
    });
    let task = tokio::spawn(drive).abort_handle();
    let used = Mutex::new(Used { places: 0, idle_since: born });
    Ok(Made::Many(Arc::new(Many { sender, task, driven, born, read, used })))
}
