//! `[P]` The marker inside the customer's message text, by which every party correlates: the load writes it, scripted
//! providers obey it, the judge reads it. It is in the text so that it passes any gateway.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

/// What the customer wants, as the marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A text that names the order number.
    Order,
    /// A JSON answer by schema.
    Json,
    /// A ticket is opened.
    Ticket,
    /// A human takes over.
    Human,
    /// The order number of the first message must still be known.
    Recall,
    /// A long text.
    Long,
}

impl Kind {
    /// Every kind with its name.
    pub const ALL: [(&'static str, Kind); 6] = [
        ("order", Kind::Order),
        ("json", Kind::Json),
        ("ticket", Kind::Ticket),
        ("human", Kind::Human),
        ("recall", Kind::Recall),
        ("long", Kind::Long),
    ];

    /// By name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.iter().find(|(n, _)| *n == name).map(|(_, k)| *k)
    }

    /// What the customer application sends as `x-llmfo-intent`.
    #[must_use]
    pub fn intent(self) -> &'static str {
        match self {
            Kind::Order | Kind::Json | Kind::Recall => "order_status",
            Kind::Ticket => "complaint",
            Kind::Human => "human_request",
            Kind::Long => "product_question",
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(_, k)| *k == self).map_or("order", |(n, _)| n)
    }
}

/// `[c:<conversation> t:<turn> k:<kind>]`, found in the text of the last user message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Conversation.
    pub conversation: String,
    /// Turn as the customer counts it.
    pub turn: u32,
    /// Kind.
    pub kind: Kind,
}

impl Marker {
    /// The last marker in a text. A name longer than 128 bytes is none.
    #[must_use]
    pub fn find(text: &str) -> Option<Marker> {
        let mut rest = text;
        let mut found = None;
        while let Some(start) = rest.find("[c:") {
            rest = &rest[start + 3..];
            if let Some(inside) = rest.find(']').map(|end| &rest[..end]) {
                found = Marker::parse(inside).or(found);
            }
        }
        found
    }

    /// As it stands in a message.
    #[must_use]
    pub fn text(&self) -> String {
        format!("[c:{} t:{} k:{}]", self.conversation, self.turn, self.kind.name())
    }

    fn parse(inside: &str) -> Option<Marker> {
        let mut parts = inside.split(' ');
        let conversation = parts.next().filter(|c| !c.is_empty() && c.len() <= 128)?.to_string();
        let turn = parts.next()?.strip_prefix("t:")?.parse().ok()?;
        let kind = Kind::named(parts.next()?.strip_prefix("k:")?)?;
        parts.next().is_none().then_some(Marker { conversation, turn, kind })
    }
}

/// The first order number in a text: `ORD-` and six digits.
#[must_use]
pub fn order_in(text: &str) -> Option<String> {
    text.match_indices("ORD-").find_map(|(at, _)| {
        let order = text.get(at..at + 10)?;
        order.bytes().skip(4).all(|b| b.is_ascii_digit()).then(|| order.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_is_read_where_it_is_well_formed() {
        let m = Marker::find("x [c:a-7 t:3 k:json] y").unwrap();
        assert_eq!((m.conversation.as_str(), m.turn, m.kind), ("a-7", 3, Kind::Json));
        assert_eq!(Marker::find(&m.text()), Some(m));
        for bad in ["", "[c:a t:x k:json]", "[c:a t:1 k:what]", "[c: t:1 k:json]", "[c:a t:1 k:json more]", "[c:a t:1"]
        {
            assert_eq!(Marker::find(bad), None, "{bad}");
        }
        assert_eq!(Marker::find("[c:a t:1 k:json] [c:b t:2 k:long]").unwrap().conversation, "b");
    }

    #[test]
    fn an_order_number_has_six_digits() {
        assert_eq!(order_in("ORD-12 ORD-654321x"), Some("ORD-654321".into()));
        assert_eq!(order_in("ORD-12345é"), None);
    }
}
