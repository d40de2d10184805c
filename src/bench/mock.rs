//! The neutral provider: two listeners, a primary and a stand-in, that answer fifty words each. It does as little as it can, and
//! is a process of its own, so that its cost is nobody's.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Duration, Instant};

use super::asked::{Asked, Fault, WORDS};
use crate::error::{Expected, Result};
use crate::lab::http::{Conn, Gone, LAST_CHUNK, NoRequest, chunk, stream_head, whole_head};

/// First and last word: whoever has seen them has seen the answer.
pub const FIRST: &str = "alpha";
/// See [`FIRST`].
pub const LAST: &str = "omega";
/// A stream breaks after so many words.
const BREAK_AFTER: usize = 5;
/// Silence ends after this, if the client has not left.
const SILENCE: Duration = Duration::from_secs(600);

/// Both listeners.
#[derive(Debug)]
pub struct Mock {
    primary: TcpListener,
    stand_in: TcpListener,
}

/// Every byte that is ever written, made once.
struct Script {
    whole: String,
    head: String,
    /// Role, words, finish, `[DONE]`: a chunk each.
    events: Vec<String>,
}

impl Script {
    fn new() -> Script {
        let words: Vec<String> = (0..WORDS)
            .map(|n| match n {
                0 => FIRST.to_owned(),
                n if n == WORDS - 1 => format!(" {LAST}"),
                n => format!(" word{n:02}"),
            })
            .collect();
        let usage = format!(r#"{{"prompt_tokens":30,"completion_tokens":{WORDS},"total_tokens":{}}}"#, 30 + WORDS);
        let body = format!(
            r#"{{"id":"chatcmpl-bench","object":"chat.completion","created":1790000000,"model":"bench-model","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}"}},"finish_reason":"stop"}}],"usage":{usage}}}"#,
            words.concat()
        );
        let event = |delta: &str, finish: &str| {
            chunk(&format!(
                "data: {{\"id\":\"chatcmpl-bench\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\
                 \"model\":\"bench-model\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]}}\n\n"
            ))
        };
        let mut events = vec![event(r#"{"role":"assistant","content":""}"#, "null")];
        events.extend(words.iter().map(|w| event(&format!(r#"{{"content":"{w}"}}"#), "null")));
        events.push(event("{}", r#""stop""#));
        events.push(chunk("data: [DONE]\n\n"));
        Script { whole: whole_head(200, body.len(), true) + &body, head: stream_head(true), events }
    }
}

impl Mock {
    /// Binds both; port 0 takes a free one.
    ///
    /// # Errors
    /// One cannot be bound.
    pub async fn bind(primary: SocketAddr, stand_in: SocketAddr) -> Result<Mock> {
        Ok(Mock { primary: listen(primary).await?, stand_in: listen(stand_in).await? })
    }

    /// Where they listen.
    ///
    /// # Errors
    /// The system does not say.
    pub fn addresses(&self) -> Result<(SocketAddr, SocketAddr)> {
        Ok((crate::lab::listen::address(&self.primary)?, crate::lab::listen::address(&self.stand_in)?))
    }

    /// Answers for ever.
    pub async fn serve(self) {
        let script: &'static Script = Box::leak(Box::new(Script::new()));
        tokio::join!(accept(self.primary, script, true), accept(self.stand_in, script, false));
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|e| {
        Expected::could_not(format!("the mock provider cannot listen on {address}: {e}"), "give another --provider")
    })
}

async fn accept(listener: TcpListener, script: &'static Script, primary: bool) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => drop(tokio::spawn(connection(stream, peer, script, primary))),
            // Out of descriptors, most likely: connections that end make room.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, script: &'static Script, primary: bool) {
    let mut conn = Conn::new(stream, peer);
    loop {
        let request = match conn.next_request().await {
            Ok(request) => request,
            Err(NoRequest::Gone) => return,
            Err(NoRequest::Bad(status, why)) => {
                let _ = whole(&mut conn, status, &format!(r#"{{"error":{{"message":"{why}"}}}}"#), "").await;
                return;
            }
        };
        if !request.path.ends_with("/chat/completions") {
            let models = r#"{"object":"list","data":[{"id":"bench-model","object":"model"}]}"#;
            if whole(&mut conn, 200, models, "").await.is_err() {
                return;
            }
            continue;
        }
        let asked = Asked::read(&request.body);
        let stream = is_stream(&request.body);
        let done = match asked.fault.filter(|_| primary) {
            Some(fault) => fail(&mut conn, script, fault, stream, &asked).await,
            None if stream => answer(&mut conn, script, &asked).await,
            None => conn.write(script.whole.as_bytes()).await,
        };
        if done.is_err() || !request.keep_alive {
            return;
        }
    }
}

/// Both spellings: gateways that write the body anew put a blank in.
fn is_stream(body: &[u8]) -> bool {
    [&br#""stream":true"#[..], br#""stream": true"#].iter().any(|n| memchr::memmem::find(body, n).is_some())
}

async fn whole(conn: &mut Conn, status: u16, body: &str, more: &str) -> std::result::Result<(), Gone> {
    let head = whole_head(status, body.len(), true);
    let head = head.strip_suffix("\r\n").unwrap_or(&head);
    conn.write(format!("{head}{more}\r\n{body}").as_bytes()).await
}

async fn answer(conn: &mut Conn, script: &Script, asked: &Asked) -> std::result::Result<(), Gone> {
    conn.write(script.head.as_bytes()).await?;
    let count = if asked.hold { 2 } else { script.events.len() };
    events(conn, script, asked, count).await?;
    if asked.hold {
        conn.wait_until(Instant::now() + SILENCE).await?;
    }
    conn.write(LAST_CHUNK).await
}

async fn events(conn: &mut Conn, script: &Script, asked: &Asked, count: usize) -> std::result::Result<(), Gone> {
    let gap = Duration::from_millis(asked.gap_ms);
    let mut at = Instant::now();
    for (n, event) in script.events.iter().take(count).enumerate() {
        // The role and the first word come at once, as do the finish and the end.
        if asked.gap_ms > 0 && n > 1 && n <= WORDS {
            at += gap;
            conn.wait_until(at).await?;
        }
        conn.write(event.as_bytes()).await?;
    }
    Ok(())
}

async fn fail(
    conn: &mut Conn,
    script: &Script,
    fault: Fault,
    stream: bool,
    asked: &Asked,
) -> std::result::Result<(), Gone> {
    let error = r#"{"error":{"message":"the bench wants it","type":"server_error","code":"bench"}}"#;
    match fault {
        Fault::Status503 => return whole(conn, 503, error, "").await,
        Fault::Status429 => return whole(conn, 429, error, "retry-after: 1\r\n").await,
        Fault::Reset => {
            conn.end_with_reset();
            return Err(Gone);
        }
        Fault::Fin => return Err(Gone),
        Fault::Silence => {
            conn.wait_until(Instant::now() + SILENCE).await?;
            return Err(Gone);
        }
        Fault::ErrorObject => return whole(conn, 200, error, "").await,
        Fault::Html => return whole(conn, 200, "<html><body>Bad gateway</body></html>", "").await,
        Fault::Empty => return whole(conn, 200, "", "").await,
        Fault::Malformed => return whole(conn, 200, r#"{"choices":[{"mess"#, "").await,
        Fault::CutReset | Fault::CutFin | Fault::Truncated | Fault::Stall | Fault::ErrorEvent => {}
    }
    if stream {
        conn.write(script.head.as_bytes()).await?;
        events(conn, script, asked, 1 + BREAK_AFTER).await?;
    } else {
        let half = script.whole.len() - 40;
        conn.write(script.whole.get(..half).unwrap_or_default().as_bytes()).await?;
    }
    match fault {
        Fault::Truncated if stream => return conn.write(LAST_CHUNK).await,
        Fault::ErrorEvent if stream => {
            conn.write(chunk(&format!("data: {error}\n\n")).as_bytes()).await?;
            return conn.write(LAST_CHUNK).await;
        }
        Fault::Stall => conn.wait_until(Instant::now() + SILENCE).await?,
        Fault::CutReset => {
            // What was written must leave before the reset takes the rest.
            conn.wait_until(Instant::now() + Duration::from_millis(20)).await?;
            conn.end_with_reset();
        }
        _ => {}
    }
    Err(Gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_fifty_words_and_its_ends() {
        let script = Script::new();
        assert_eq!(script.events.len(), 1 + WORDS + 2);
        let (_, body) = script.whole.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        let text = body["choices"][0]["message"]["content"].as_str().unwrap();
        let words: Vec<&str> = text.split(' ').collect();
        assert_eq!((words.len(), words[0], words[WORDS - 1]), (WORDS, FIRST, LAST));
        assert!(is_stream(br#"{"stream": true}"#) && !is_stream(br#"{"stream":false}"#));
    }
}
