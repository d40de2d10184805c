//! IBANs: a country, the length that its accounts have, and the check digits by mod 97 (ISO 13616, ISO 7064).

use std::ops::Range;

use super::{after, before, gap, glued};

/// Lengths by country, from the registry of SWIFT (release 98, 2024).
const LENGTHS: &str = "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 \
    EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 \
    LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 \
    RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30";

/// An IBAN of a country that is not in the list is taken if it is written in one piece and at least this long.
const UNKNOWN_MIN: usize = 15;
const LENGTH_MAX: usize = 34;

/// Hands out where they stand.
pub(super) fn find(text: &str, found: &mut impl FnMut(Range<usize>)) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at + UNKNOWN_MIN <= bytes.len() {
        let head = matches!(bytes.get(at..at + 4), Some([a, b, c, d])
            if a.is_ascii_alphabetic() && b.is_ascii_alphabetic() && c.is_ascii_digit() && d.is_ascii_digit());
        if head
            && !glued(before(text, at))
            && let Some(end) = iban(text, at)
        {
            found(at..end);
            at = end;
        } else {
            at += 1;
        }
    }
}

fn iban(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let country = [bytes.get(from)?.to_ascii_uppercase(), bytes.get(from + 1)?.to_ascii_uppercase()];
    let length = LENGTHS.split(' ').find_map(|entry| {
        let length = entry.strip_prefix(std::str::from_utf8(&country).ok()?)?;
        length.parse::<usize>().ok()
    });
    let mut rest = [0u8; LENGTH_MAX];
    let (mut at, mut count) = (from, 0);
    let end = loop {
        match bytes.get(at) {
            Some(b) if b.is_ascii_alphanumeric() => {
                *rest.get_mut(count)? = b.to_ascii_uppercase();
                count += 1;
                at += 1;
                if Some(count) == length {
                    break at;
                }
            }
            _ => {
                let space = gap(bytes, at);
                let goes_on = space > 0 && bytes.get(at + space).is_some_and(u8::is_ascii_alphanumeric);
                if goes_on && count >= 4 && length.is_some() {
                    at += space;
                } else if length.is_none() && count >= UNKNOWN_MIN {
                    break at;
                } else {
                    return None;
                }
            }
        }
    };
    (!glued(after(text, end)) && mod_97(rest.get(..count)?) == 1).then_some(end)
}

/// The first four characters moved to the end, letters as two digits.
fn mod_97(iban: &[u8]) -> u32 {
    let (head, tail) = iban.split_at(4.min(iban.len()));
    tail.iter().chain(head).fold(0, |sum, b| match b {
        b'0'..=b'9' => (sum * 10 + u32::from(b - b'0')) % 97,
        _ => (sum * 100 + u32::from(b.saturating_sub(b'A')) + 10) % 97,
    })
}
