//! A provider that speaks HTTP/2, and one that writes single frames of it by hand.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::{self, SendResponse};
use h2::{Reason, SendStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::mock::{finish_chunk, role_chunk, text_chunk, whole};

/// What becomes of a request, by the number of its connection and its own number on all of them, both from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Answered, streamed or not as asked.
    Answer,
    /// `RST_STREAM` with `REFUSED_STREAM`: it was not processed.
    Refuse,
    /// `GOAWAY` that says that no stream was processed.
    Away,
    /// Answered up to the first text; `GOAWAY` in the middle; then the rest.
    AnswerAcrossGoaway,
    /// Text without an end, until the client leaves.
    Endless,
    /// The connection is cut after the first text.
    Cut,
    /// 32 MB of text, more than what lies between two sockets.
    Large,
}

#[derive(Default)]
pub struct Log {
    pub connections: usize,
    /// `:authority` of each request, in order.
    pub asked: Vec<String>,
    /// Requests that a model worked on.
    pub processed: usize,
    /// Times that the end of a connection was announced in the middle of an answer.
    pub goaways: usize,
    /// Pieces of large answers that were taken.
    pub large: usize,
    /// Why streams were reset by the client.
    pub resets: Vec<Reason>,
}

pub struct H2Mock {
    pub address: SocketAddr,
    log: Arc<Mutex<Log>>,
    /// Mid-answer waits end one by one.
    pub go: Arc<Semaphore>,
    _runtime: tokio::runtime::Runtime,
}

type Script = Arc<dyn Fn(usize, usize) -> Act + Send + Sync>;

impl H2Mock {
    pub fn start(script: impl Fn(usize, usize) -> Act + Send + Sync + 'static) -> H2Mock {
        H2Mock::under(None, u32::MAX, script)
    }

    /// One that allows so many requests at once on a connection.
    pub fn allowing(streams: u32, script: impl Fn(usize, usize) -> Act + Send + Sync + 'static) -> H2Mock {
        H2Mock::under(None, streams, script)
    }

    /// Under TLS, if there is a configuration.
    pub fn under(
        tls: Option<Arc<rustls::ServerConfig>>,
        streams: u32,
        script: impl Fn(usize, usize) -> Act + Send + Sync + 'static,
    ) -> H2Mock {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (log, go): (Arc<Mutex<Log>>, _) = (Arc::default(), Arc::new(Semaphore::new(0)));
        let (script, shared, gate): (Script, _, _) = (Arc::new(script), Arc::clone(&log), Arc::clone(&go));
        runtime.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let n = {
                    let mut log = shared.lock().unwrap();
                    log.connections += 1;
                    log.connections - 1
                };
                let all = (Arc::clone(&script), Arc::clone(&shared), Arc::clone(&gate));
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        Some(config) => {
                            let Ok(stream) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await else {
                                return;
                            };
                            serve(stream, n, streams, all).await;
                        }
                        None if all.0(n, 0) == Act::Away => by_hand(stream, all.1).await,
                        None => serve(stream, n, streams, all).await,
                    }
                });
            }
        });
        H2Mock { address, log, go, _runtime: runtime }
    }

    pub fn log<T>(&self, of: impl Fn(&Log) -> T) -> T {
        of(&self.log.lock().unwrap())
    }

    /// Waits for something in the log.
    pub fn until(&self, what: &str, is: impl Fn(&Log) -> bool) {
        let start = Instant::now();
        while !self.log(&is) {
            assert!(start.elapsed() < Duration::from_secs(20), "{what} did not come");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    n: usize,
    streams: u32,
    all: (Script, Arc<Mutex<Log>>, Arc<Semaphore>),
) {
    let handshake = server::Builder::new().max_concurrent_streams(streams).handshake(stream);
    let Ok(mut connection) = handshake.await else { return };
    let (away, mut go_away) = tokio::sync::mpsc::channel::<()>(8);
    let (cut, mut cut_now) = tokio::sync::mpsc::channel::<()>(8);
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                let Some(Ok((request, respond))) = accepted else { return };
                tokio::spawn(answer(request, respond, n, all.clone(), (away.clone(), cut.clone())));
            }
            _ = go_away.recv() => {
                connection.graceful_shutdown();
                all.1.lock().unwrap().goaways += 1;
            }
            _ = cut_now.recv() => return,
        }
    }
}

type Signals = (tokio::sync::mpsc::Sender<()>, tokio::sync::mpsc::Sender<()>);

async fn answer(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    n: usize,
    (script, log, go): (Script, Arc<Mutex<Log>>, Arc<Semaphore>),
    (away, cut): Signals,
) {
    let (head, mut body) = request.into_parts();
    let mut all = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    let json: serde_json::Value = serde_json::from_slice(&all).unwrap();
    let nth = {
        let mut log = log.lock().unwrap();
        log.asked.push(head.uri.authority().map(ToString::to_string).unwrap_or_default());
        log.asked.len() - 1
    };
    let act = script(n, nth);
    if act == Act::Refuse {
        return respond.send_reset(Reason::REFUSED_STREAM);
    }
    log.lock().unwrap().processed += 1;
    let streamed = json["stream"] == true;
    let kind = if streamed { "text/event-stream" } else { "application/json" };
    let head = Response::builder().header("content-type", kind).body(()).unwrap();
    let Ok(mut out) = respond.send_response(head, false) else { return };
    let event = |json: String| Bytes::from(format!("data: {json}\n\n"));
    if !streamed {
        let _ = out.send_data(Bytes::from(whole("second one two")), true);
        return;
    }
    let _ = out.send_data(event(role_chunk()), false);
    let _ = out.send_data(event(text_chunk("begun")), false);
    match act {
        Act::Cut => {
            go.acquire().await.unwrap().forget();
            return cut.send(()).await.unwrap();
        }
        Act::AnswerAcrossGoaway => {
            away.send(()).await.unwrap();
            go.acquire().await.unwrap().forget();
        }
        Act::Endless => {
            let reason = std::future::poll_fn(|cx| out.poll_reset(cx)).await;
            return log.lock().unwrap().resets.extend(reason.ok());
        }
        Act::Large => {
            for _ in 0..2_000 {
                if !send(&mut out, event(text_chunk(&"x".repeat(16_000)))).await {
                    return;
                }
                log.lock().unwrap().large += 1;
            }
        }
        Act::Answer | Act::Refuse | Act::Away => {}
    }
    let _ = out.send_data(event(text_chunk(" and done")), false);
    let _ = out.send_data(event(finish_chunk("stop")), false);
    let _ = out.send_data(event("[DONE]".to_owned()), true);
}

/// Only as much as the client takes.
async fn send(out: &mut SendStream<Bytes>, mut data: Bytes) -> bool {
    while !data.is_empty() {
        out.reserve_capacity(data.len());
        let Some(Ok(n)) = std::future::poll_fn(|cx| out.poll_capacity(cx)).await else { return false };
        if out.send_data(data.split_to(n.min(data.len())), false).is_err() {
            return false;
        }
    }
    true
}

/// One frame.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut all = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, 0];
    all.extend_from_slice(payload);
    all
}

/// Takes one request and says `GOAWAY`, last stream 0, no error: it has processed none.
async fn by_hand(mut stream: TcpStream, log: Arc<Mutex<Log>>) {
    const SETTINGS: u8 = 4;
    let mut preface = [0; 24];
    if stream.read_exact(&mut preface).await.is_err() {
        return;
    }
    stream.write_all(&frame(SETTINGS, 0, &[])).await.unwrap();
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        stream.read_exact(&mut payload).await.unwrap();
        let (kind, flags) = (head[3], head[4]);
        if kind == SETTINGS && flags == 0 {
            stream.write_all(&frame(SETTINGS, 1, &[])).await.unwrap();
        }
        // The end of a request: of its headers or of its data.
        if matches!(kind, 0 | 1) && flags & 1 == 1 {
            log.lock().unwrap().asked.push("by hand".to_owned());
            stream.write_all(&frame(7, 0, &[0; 8])).await.unwrap();
        }
    }
}
