//! Answers under a content coding that was not asked for: some providers, and proxies before them, compress all the same.
//!
//! A piece of at most 64 KiB is decoded at a time and handed on before more is: an answer that unpacks to gigabytes meets the
//! limits of whoever reads it, and is never held. A body that ends before its codec has is cut off.

use std::borrow::Cow;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use bytes::Bytes;
use flate2::{Crc, Decompress, FlushDecompress, Status};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::fault::{Fault, FaultKind};

/// What is decoded at a time.
const PIECE_BYTES: usize = 64 * 1024;
/// Longest head of a gzip member: a file name and a comment are nothing that a server sends.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// A codec on its way through a body.
pub(super) struct Decoder {
    codec: Codec,
    name: &'static str,
    input: Bytes,
    /// Something has come.
    begun: bool,
}

type Brotli = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

enum Codec {
    Gzip(Gzip),
    /// Which of the two formats it is, the first two bytes say.
    Deflate(Vec<u8>),
    Inflating(Box<Decompress>),
    Brotli(Box<Brotli>),
    /// It has come to its proper end.
    Over,
}

enum Gzip {
    Head(Vec<u8>),
    Body(Box<Decompress>, Crc),
    Trailer(Vec<u8>, Crc),
    /// A member is over; another one may follow.
    Between,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").field("coding", &self.name).finish_non_exhaustive()
    }
}

impl Decoder {
    /// The decoder that these headers ask for. `None`: the body is as it is, or under something that is not known here (then the
    /// header stays for whoever reads the answer).
    pub(super) fn of(headers: &HeaderMap) -> Option<Decoder> {
        let mut coding: Option<Cow<'_, str>> = None;
        for value in headers.get_all(CONTENT_ENCODING) {
            for one in value.to_str().ok()?.split(',').map(str::trim) {
                if one.is_empty() || one.eq_ignore_ascii_case("identity") {
                    continue;
                }
                if coding.is_some() {
                    return None;
                }
                coding = Some(Cow::Owned(one.to_ascii_lowercase()));
            }
        }
        let (name, codec) = match coding?.as_ref() {
            "gzip" | "x-gzip" => ("gzip", Codec::Gzip(Gzip::Head(Vec::new()))),
            "deflate" => ("deflate", Codec::Deflate(Vec::new())),
            "br" => ("br", Codec::Brotli(Box::new(brotli()))),
            _ => return None,
        };
        Some(Decoder { codec, name, input: Bytes::new(), begun: false })
    }

    /// More of the body. To be called when [`Decoder::next`] has nothing more.
    pub(super) fn push(&mut self, data: Bytes) {
        self.begun |= !data.is_empty();
        self.input = data;
    }

    /// The next decoded piece; `None`: more of the body is needed.
    ///
    /// # Errors
    /// The body is not what its coding says.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        let mut out = vec![0; PIECE_BYTES];
        loop {
            let before = self.input.len();
            let made = self.step(&mut out).map_err(|()| {
                Fault::new(FaultKind::Protocol, format!("the body is not valid {}, which it says it is", self.name))
            })?;
            if made > 0 {
                out.truncate(made);
                return Ok(Some(Bytes::from(out)));
            }
            if self.input.is_empty() && before == 0 {
                return Ok(None);
            }
        }
    }

    /// The body has ended.
    ///
    /// # Errors
    /// Its codec has not: it was cut off.
    pub(super) fn end(&self) -> Result<(), Fault> {
        let whole = matches!(self.codec, Codec::Over | Codec::Gzip(Gzip::Between)) || !self.begun;
        let cut = || Fault::new(FaultKind::Reset, format!("the body ended inside its {} coding", self.name));
        if whole { Ok(()) } else { Err(cut()) }
    }

    /// Takes some input and gives some output. Nothing of both: more input is needed.
    fn step(&mut self, out: &mut [u8]) -> Result<usize, ()> {
        match &mut self.codec {
            Codec::Gzip(gzip) => gzip.step(&mut self.input, out),
            Codec::Deflate(first) => {
                while first.len() < 2 && !self.input.is_empty() {
                    first.extend_from_slice(&self.input.split_to(1));
                }
                let [method, flags] = first.as_slice() else { return Ok(0) };
                // RFC 1950; many servers send the bare stream of RFC 1951 under the same name.
                let zlib = method & 0x0f == 8 && (u16::from(*method) << 8 | u16::from(*flags)).is_multiple_of(31);
                let mut joined = std::mem::take(first);
                joined.extend_from_slice(&self.input);
                self.input = Bytes::from(joined);
                self.codec = Codec::Inflating(Box::new(Decompress::new(zlib)));
                Ok(0)
            }
            Codec::Inflating(inflate) => {
                let (made, over) = inflated(inflate, &mut self.input, out)?;
                if over {
                    self.codec = Codec::Over;
                }
                Ok(made)
            }
            Codec::Brotli(state) => {
                let (mut left, mut taken, mut room, mut made, mut total) = (self.input.len(), 0, out.len(), 0, 0);
                let result = BrotliDecompressStream(
                    &mut left,
                    &mut taken,
                    &self.input,
                    &mut room,
                    &mut made,
                    out,
                    &mut total,
                    state,
                );
                let _ = self.input.split_to(taken.min(self.input.len()));
                match result {
                    BrotliResult::ResultFailure => return Err(()),
                    BrotliResult::ResultSuccess => self.codec = Codec::Over,
                    BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
                }
                Ok(made)
            }
            Codec::Over if self.input.is_empty() => Ok(0),
            // Bytes behind the end belong to nothing.
            Codec::Over => Err(()),
        }
    }
}

fn brotli() -> Brotli {
    // Without the large windows of its later draft: 16 MiB at most.
    BrotliState::new_strict(StandardAlloc::default(), StandardAlloc::default(), StandardAlloc::default())
}

/// Inflates what fits; true at the end of the stream.
fn inflated(inflate: &mut Decompress, input: &mut Bytes, out: &mut [u8]) -> Result<(usize, bool), ()> {
    let (taken, made) = (inflate.total_in(), inflate.total_out());
    let status = inflate.decompress(input, out, FlushDecompress::None).map_err(drop)?;
    let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let _ = input.split_to(count(inflate.total_in() - taken).min(input.len()));
    Ok((count(inflate.total_out() - made), status == Status::StreamEnd))
}

impl Gzip {
    fn step(&mut self, input: &mut Bytes, out: &mut [u8]) -> Result<usize, ()> {
        match self {
            Gzip::Between if input.is_empty() => Ok(0),
            Gzip::Between => {
                *self = Gzip::Head(Vec::new());
                Ok(0)
            }
            Gzip::Head(head) => {
                if input.is_empty() {
                    return Ok(0);
                }
                let known = head.len();
                head.extend_from_slice(input);
                match head_bytes(head)? {
                    Some(bytes) => {
                        let _ = input.split_to((bytes - known).min(input.len()));
                        *self = Gzip::Body(Box::new(Decompress::new(false)), Crc::new());
                    }
                    None if head.len() > HEAD_BYTES_MAX => return Err(()),
                    None => *input = Bytes::new(),
                }
                Ok(0)
            }
            Gzip::Body(inflate, crc) => {
                let (made, over) = inflated(inflate, input, out)?;
                crc.update(out.get(..made).unwrap_or_default());
                if over {
                    let crc = std::mem::replace(crc, Crc::new());
                    *self = Gzip::Trailer(Vec::new(), crc);
                }
                Ok(made)
            }
            Gzip::Trailer(trailer, crc) => {
                let wanted = (8 - trailer.len()).min(input.len());
                trailer.extend_from_slice(&input.split_to(wanted));
                if let [a, b, c, d, e, f, g, h] = trailer.as_slice() {
                    let sums = (u32::from_le_bytes([*a, *b, *c, *d]), u32::from_le_bytes([*e, *f, *g, *h]));
                    if sums != (crc.sum(), crc.amount()) {
                        return Err(());
                    }
                    *self = Gzip::Between;
                }
                Ok(0)
            }
        }
    }
}

/// How long the head of a gzip member is (RFC 1952), if all of it is there.
fn head_bytes(head: &[u8]) -> Result<Option<usize>, ()> {
    let magic = [0x1f, 0x8b, 8];
    if head.iter().zip(magic).any(|(a, b)| *a != b) {
        return Err(());
    }
    let Some(flags) = head.get(3) else { return Ok(None) };
    let mut at = 10;
    if flags & 4 != 0 {
        let Some([low, high]) = head.get(at..at + 2) else { return Ok(None) };
        at += 2 + usize::from(u16::from_le_bytes([*low, *high]));
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            let Some(end) = head.get(at..).and_then(|rest| memchr::memchr(0, rest)) else { return Ok(None) };
            at += end + 1;
        }
    }
    at += if flags & 2 != 0 { 2 } else { 0 };
    Ok((head.len() >= at).then_some(at))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;

    /// "data: brotli\n\n" in one meta-block that is not compressed (RFC 7932), as the reference encoder writes short texts.
    const BROTLI: &[u8] = b"\x8b\x06\x80data: brotli\n\n\x03";

    fn decoder(coding: &str) -> Decoder {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, coding.parse().unwrap());
        Decoder::of(&headers).unwrap()
    }

    /// All that comes of a body in pieces of this size.
    fn decoded(coding: &str, body: &[u8], size: usize) -> Result<Vec<u8>, FaultKind> {
        let mut decoder = decoder(coding);
        let mut all = Vec::new();
        for piece in body.chunks(size) {
            decoder.push(Bytes::copy_from_slice(piece));
            while let Some(out) = decoder.next().map_err(|f| f.kind)? {
                assert!(out.len() <= PIECE_BYTES);
                all.extend_from_slice(&out);
            }
        }
        decoder.end().map_err(|f| f.kind)?;
        Ok(all)
    }

    fn bodies(text: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(text).unwrap();
        let gzip = gzip.finish().unwrap();
        let named = flate2::GzBuilder::new().filename("a.json").extra("xyz").comment("c");
        let mut named = named.write(Vec::new(), Compression::fast());
        named.write_all(text).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
        zlib.write_all(text).unwrap();
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::default());
        raw.write_all(text).unwrap();
        vec![
            ("gzip", gzip.clone()),
            ("X-GZIP", named.finish().unwrap()),
            ("identity, gzip", gzip),
            ("deflate", zlib.finish().unwrap()),
            ("deflate", raw.finish().unwrap()),
        ]
    }

    #[test]
    fn what_was_coded_comes_out_whatever_the_pieces_and_a_cut_is_one() {
        let text = "data: {\"x\":\"héllo\"}\n\n".repeat(40);
        for (coding, body) in bodies(text.as_bytes()) {
            for size in [1, 2, 7, 4096] {
                assert_eq!(decoded(coding, &body, size).unwrap(), text.as_bytes(), "{coding} {size}");
            }
            for cut in 1..body.len() {
                assert_eq!(decoded(coding, &body[..cut], 5), Err(FaultKind::Reset), "{coding} {cut}");
            }
            assert_eq!(decoded(coding, &[body.as_slice(), b"x"].concat(), 5), Err(FaultKind::Protocol), "{coding}");
        }
        // Two members are one text.
        let twice = bodies(b"ab")[0].1.repeat(2);
        assert_eq!(decoded("gzip", &twice, 3).unwrap(), b"abab");
        assert_eq!(decoded("gzip", b"", 1).unwrap(), b"");
    }

    #[test]
    fn brotli_comes_out_and_its_cut_is_one() {
        for size in [1, 3, 100] {
            assert_eq!(decoded("br", BROTLI, size).unwrap(), b"data: brotli\n\n");
        }
        for cut in 1..BROTLI.len() {
            assert_eq!(decoded("br", &BROTLI[..cut], 4), Err(FaultKind::Reset), "{cut}");
        }
        assert_eq!(decoded("br", b"\xff\xff\xff\xff\xff", 5), Err(FaultKind::Protocol));
    }

    #[test]
    fn damage_is_told_from_a_cut() {
        let body = bodies(b"hello, hello, hello")[0].1.clone();
        for at in 0..body.len() {
            let mut bad = body.clone();
            bad[at] ^= 0x55;
            let told = decoded("gzip", &bad, 4);
            // In its head stand things that nobody needs (time, system); damaged data may look like longer data.
            assert!(told.is_err() || (4..10).contains(&at), "{at}");
            if at < 3 || at >= body.len() - 8 {
                assert_eq!(told, Err(FaultKind::Protocol), "{at}");
            }
        }
        assert_eq!(decoded("gzip", b"{\"choices\":[]}", 4), Err(FaultKind::Protocol));
    }

    #[test]
    fn a_bomb_comes_out_in_small_pieces() {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..64 {
            bomb.write_all(&vec![0; 1 << 20]).unwrap();
        }
        let bomb = bomb.finish().unwrap();
        assert!(bomb.len() < 100_000);
        // `decoded` looks at the size of each piece.
        assert_eq!(decoded("gzip", &bomb, bomb.len()).unwrap().len(), 64 << 20);
    }

    #[test]
    fn what_is_not_known_is_left_to_the_reader() {
        for coding in ["zstd", "gzip, br", "aes128gcm", "identity", ""] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_ENCODING, coding.parse().unwrap());
            assert!(Decoder::of(&headers).is_none(), "{coding}");
        }
        assert!(Decoder::of(&HeaderMap::new()).is_none());
    }
}
