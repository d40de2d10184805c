//! One proxied connection: dial, then copy both directions through their chains until an end. One task per connection; it
//! never waits for a peer without listening to the API as well.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use super::live::{Live, OpenGuard};
use crate::fault::toxic::chain::{Active, Chain};
use crate::fault::toxic::{End, Item};
use crate::units::Ts;

/// A dial that takes longer has failed. The client holds a connection without an answer for so long at most.
const DIAL_MAX: Duration = Duration::from_secs(30);
/// One read; the real server's buffers have this size too.
const READ_BYTES: usize = 32 << 10;
/// Less room than this makes a new buffer. Small chunks share one: a toxic that holds thousands of them must not hold a
/// buffer for each.
const READ_MIN_BYTES: usize = 4 << 10;
/// An end waits for a receiver that makes no progress for so long at most.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// After a FIN by us, bytes still under way to us are read and dropped for so long, since closing a socket with unread bytes
/// would turn the FIN into a reset.
const LINGER_MAX: Duration = Duration::from_millis(500);
/// No timer is set further ahead; the connection looks again then.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The toxics of a proxy at one moment. The API knows that every connection has moved on to newer ones when all copies of the
/// old ones are gone: `alive` closes then.
#[derive(Debug)]
pub struct ToxicSet {
    /// Towards the upstream.
    pub up: Vec<Active>,
    /// Towards the client.
    pub down: Vec<Active>,
    /// A `reset_peer` is among them.
    pub armed: bool,
    /// Held, never used.
    pub alive: mpsc::Sender<()>,
}

/// What the API tells all connections of a proxy.
#[derive(Clone, Debug)]
pub struct Control {
    /// Connections of another epoch close.
    pub epoch: u64,
    /// Toxics.
    pub set: Arc<ToxicSet>,
}

/// What a connection needs.
#[derive(Debug)]
pub struct Conn {
    /// Accepted.
    pub client: TcpStream,
    /// `host:port`.
    pub upstream: String,
    /// From the API.
    pub control: watch::Receiver<Control>,
    /// Counters.
    pub live: Arc<Live>,
    /// Seed of this connection.
    pub seed: u64,
}

enum Ending {
    /// Both directions are over.
    Done,
    /// A peer broke the connection.
    Reset,
    /// A toxic ended it.
    Toxic(End),
    /// The proxy was disabled, changed or deleted.
    Closed,
}

/// Dials and copies until the end.
pub async fn run(conn: Conn) {
    let Conn { client, upstream, mut control, live, seed } = conn;
    let open = OpenGuard::new(&live);
    let Control { epoch, set } = control.borrow_and_update().clone();
    let armed = set.armed;
    drop(set);
    let _ = client.set_nodelay(true);
    let dial = pin!(timeout(DIAL_MAX, TcpStream::connect(&upstream)));
    let dialled = tokio::select! {
        biased;
        () = closed(&mut control, epoch) => None,
        dialled = dial => Some(dialled),
    };
    match dialled {
        Some(Ok(Ok(upstream))) => {
            let _ = upstream.set_nodelay(true);
            copy(client, upstream, control, epoch, &live, open, (seed, armed)).await;
        }
        Some(_) => {
            live.dial_failures.fetch_add(1, Relaxed);
            drop(open);
            linger(vec![client]).await;
        }
        None => {
            drop(open);
            linger(vec![client]).await;
        }
    }
}

/// Ends when this epoch is over. Toxic changes alone pass by.
async fn closed(control: &mut watch::Receiver<Control>, epoch: u64) {
    while control.borrow_and_update().epoch == epoch {
        if control.changed().await.is_err() {
            return;
        }
    }
}

struct Half {
    chain: Chain,
    buf: BytesMut,
    read_done: bool,
    write_done: bool,
    /// The receiver is gone: nothing more is read for it.
    dead: bool,
    /// The sender broke the connection.
    peer_reset: bool,
    wake: Option<Ts>,
    progress: Ts,
}

impl Half {
    fn new(chain: Chain) -> Half {
        let buf = BytesMut::new();
        Half {
            chain,
            buf,
            read_done: false,
            write_done: false,
            dead: false,
            peer_reset: false,
            wake: None,
            progress: Ts::ZERO,
        }
    }

    /// Brings the toxics to this moment. True: they end this direction, and with it the connection, as soon as what stands
    /// before the end is written.
    fn ends(&mut self, now: Ts) -> bool {
        self.wake = self.chain.advance(now);
        self.chain.end().is_some()
    }

    /// Moves what can be moved.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        now: Ts,
        (from, received): (&mut TcpStream, &AtomicU64),
        (to, sent): (&mut TcpStream, &AtomicU64),
    ) -> Option<End> {
        loop {
            self.wake = self.chain.advance(now);
            if let Some(end) = self.write(cx, now, to, sent) {
                return Some(end);
            }
            if self.dead || self.read_done || !self.chain.room() {
                break;
            }
            if self.buf.capacity() - self.buf.len() < READ_MIN_BYTES {
                self.buf.reserve(READ_BYTES);
            }
            let read = pin!(from.read_buf(&mut self.buf));
            match std::future::Future::poll(read, cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    self.read_done = true;
                    self.chain.push(Item::Eof, now);
                }
                Poll::Ready(Ok(n)) => {
                    received.fetch_add(n as u64, Relaxed);
                    self.chain.push(Item::Data { bytes: self.buf.split().freeze(), at: now }, now);
                }
                // A reset travels on as a reset, behind what came before it.
                Poll::Ready(Err(_)) => {
                    self.read_done = true;
                    self.peer_reset = true;
                    self.chain.push(Item::End(End::Rst), now);
                }
            }
        }
        None
    }

    fn write(&mut self, cx: &mut Context<'_>, now: Ts, to: &mut TcpStream, sent: &AtomicU64) -> Option<End> {
        loop {
            let n = match self.chain.front() {
                None => return None,
                Some(Item::End(end)) => return Some(*end),
                Some(_) if self.dead => self.chain.front().map_or(0, Item::len),
                Some(Item::Eof) => match Pin::new(&mut *to).poll_shutdown(cx) {
                    Poll::Pending => return None,
                    Poll::Ready(_) => {
                        self.write_done = true;
                        0
                    }
                },
                Some(Item::Data { bytes, .. }) => match Pin::new(&mut *to).poll_write(cx, bytes) {
                    Poll::Pending => return self.overdue(now),
                    Poll::Ready(Ok(n)) => {
                        sent.fetch_add(n as u64, Relaxed);
                        n
                    }
                    Poll::Ready(Err(_)) => {
                        self.dead = true;
                        continue;
                    }
                },
            };
            self.progress = now;
            self.chain.written(n);
            self.wake = self.chain.advance(now);
        }
    }

    /// An end that waits behind bytes that the receiver does not take.
    fn overdue(&mut self, now: Ts) -> Option<End> {
        let end = self.chain.end()?;
        let due = self.progress + FLUSH_MAX;
        if due <= now {
            return Some(end);
        }
        self.wake = Some(self.wake.map_or(due, |w| w.min(due)));
        None
    }

    fn over(&self) -> bool {
        self.write_done || self.dead
    }
}

async fn copy(
    mut client: TcpStream,
    mut upstream: TcpStream,
    mut control: watch::Receiver<Control>,
    epoch: u64,
    live: &Live,
    open: OpenGuard,
    (seed, armed): (u64, bool),
) {
    let start = Instant::now();
    let clock = || Ts(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    let mut up = Half::new(Chain::new(false, seed, armed));
    let mut down = Half::new(Chain::new(true, seed, armed));
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    let mut current: Option<Arc<ToxicSet>> = None;
    let ending = loop {
        let Control { epoch: now_epoch, set } = control.borrow_and_update().clone();
        if now_epoch != epoch {
            break Ending::Closed;
        }
        up.chain.apply(&set.up, clock());
        down.chain.apply(&set.down, clock());
        // Only now the older ones are let go: see `ToxicSet`.
        current.replace(set);
        let copying = poll_fn(|cx| {
            let now = clock();
            // Where one direction is to end, nothing passes in the other any more: what is cut at once looks dead from both
            // sides, and a request that came with its connection must not reach the upstream before the cut.
            let (up_ends, down_ends) = (up.ends(now), down.ends(now));
            let mut end = None;
            if up_ends || !down_ends {
                end = up.poll(cx, now, (&mut client, &live.up_received), (&mut upstream, &live.up_sent));
            }
            if end.is_none() && (down_ends || !up_ends) {
                end = down.poll(cx, now, (&mut upstream, &live.down_received), (&mut client, &live.down_sent));
            }
            if let Some(end) = end {
                let by_peer = end == End::Rst && (up.peer_reset || down.peer_reset);
                return Poll::Ready(if by_peer { Ending::Reset } else { Ending::Toxic(end) });
            }
            if up.over() && down.over() {
                return Poll::Ready(if up.dead || down.dead { Ending::Reset } else { Ending::Done });
            }
            poll_timer(&mut timer, up.wake.into_iter().chain(down.wake).min(), start, cx)
        });
        tokio::select! {
            biased;
            changed = control.changed() => if changed.is_err() {
                break Ending::Closed;
            },
            ending = copying => break ending,
        }
    };
    drop((control, current, open));
    match ending {
        Ending::Done => {}
        Ending::Reset => reset(&client, &upstream),
        Ending::Toxic(end) => {
            live.ended_by_toxic.fetch_add(1, Relaxed);
            match end {
                End::Rst => reset(&client, &upstream),
                End::Fin => linger(vec![client, upstream]).await,
            }
        }
        Ending::Closed => linger(vec![client, upstream]).await,
    }
}

/// Arranges for the task to be polled again at `wake`.
fn poll_timer(
    timer: &mut Option<Pin<Box<Sleep>>>,
    wake: Option<Ts>,
    start: Instant,
    cx: &mut Context<'_>,
) -> Poll<Ending> {
    let Some(wake) = wake else {
        *timer = None;
        return Poll::Pending;
    };
    let after = Duration::from_nanos(wake.0).min(start.elapsed() + SLEEP_MAX);
    let at = start + after;
    let sleep = timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
    if sleep.deadline() != at {
        sleep.as_mut().reset(at);
    }
    if std::future::Future::poll(sleep.as_mut(), cx).is_ready() {
        // Already due: come back at once.
        *timer = None;
        cx.waker().wake_by_ref();
    }
    Poll::Pending
}

fn reset(client: &TcpStream, upstream: &TcpStream) {
    let _ = client.set_zero_linger();
    let _ = upstream.set_zero_linger();
}

/// Closes with a FIN: see [`LINGER_MAX`].
async fn linger(streams: Vec<TcpStream>) {
    let drains = streams.into_iter().map(|mut stream| async move {
        let _ = tokio::io::AsyncWriteExt::shutdown(&mut stream).await;
        let mut sink = [0; 4096];
        while matches!(stream.read(&mut sink).await, Ok(n) if n > 0) {}
    });
    tokio::select! {
        _ = futures_util::future::join_all(drains) => {}
        () = sleep(LINGER_MAX) => {}
    }
}
