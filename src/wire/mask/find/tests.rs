//! What is found and what is not. Card numbers are the networks' published test numbers, IBANs the examples of the registry.

use super::*;

fn found(text: &str) -> Vec<(Kind, &str)> {
    find(text, &Names::default()).into_iter().map(|f| (f.kind, &text[f.at])).collect()
}

/// Each text holds exactly this.
fn only(kind: Kind, cases: &[(&str, &str)]) {
    for (text, value) in cases {
        assert_eq!(found(text), [(kind, *value)], "{text}");
    }
}

fn nothing(texts: &[&str]) {
    for text in texts {
        assert_eq!(found(text), [], "{text}");
    }
}

#[test]
fn e_mail_addresses() {
    only(
        Kind::Email,
        &[
            ("write to anna.k+shop@mail.example.com.", "anna.k+shop@mail.example.com"),
            ("<anna@example.com>", "anna@example.com"),
            ("('anna@example.com')", "anna@example.com"),
            ("o'brien@example.ie,", "o'brien@example.ie"),
            ("mailto:anna@example.co.uk?subject=x", "anna@example.co.uk"),
            ("https://x.org/?mail=anna%40example.com&b=1", "anna%40example.com"),
            ("анна@пример.рф!", "анна@пример.рф"),
            ("a@b.cd", "a@b.cd"),
            ("-anna@example.com-", "anna@example.com"),
            ("anna@xn--e1afmkfd.xn--p1ai", "anna@xn--e1afmkfd.xn--p1ai"),
            ("邮箱anna@example.com谢谢", "anna@example.com"),
            ("anna@example.com.1", "anna@example.com"),
        ],
    );
    nothing(&["@anna", "anna@", "a @ b.com", "user@localhost", "user@10.0.0.5", "100% @ 5.99", "a@b..com", "x@-b.com"]);
    assert_eq!(found("a@x.com,b@x.com;c@x.com").len(), 3);
    assert_eq!(found("a%40x.com;b@x.com").len(), 2);
}

#[test]
fn payment_cards() {
    for number in [
        "4111111111111111",
        "4111 1111 1111 1111",
        "4111-1111-1111-1111",
        "4111\u{a0}1111\u{a0}1111\u{a0}1111",
        "5555555555554444",
        "2223003122003222",
        "378282246310005",
        "3782 822463 10005",
        "30569309025904",
        "6011111111111117",
        "3530111333300000",
        "6205500000000000004",
        "4222222222222",
        "2200 0000 0000 0004",
        "9792030000000000",
    ] {
        only(
            Kind::Card,
            &[(&format!("card: {number}, thanks"), number), (number, number), (&format!("{number}."), number)],
        );
    }
    only(Kind::Card, &[("12345 4111 1111 1111 1111", "4111 1111 1111 1111")]);
    nothing(&[
        "4111111111111112",
        "order 1234567890123456",
        "1700000000000",
        "0.4111111111111111",
        "41111111111111111111111",
        "x4111111111111111",
        "550e8400-e29b-41d4-a716-446655440000",
        "4111 1111\n1111 1111",
    ]);
}

#[test]
fn ibans() {
    only(
        Kind::Iban,
        &[
            ("IBAN: DE89 3704 0044 0532 0130 00 is mine", "DE89 3704 0044 0532 0130 00"),
            ("DE89370400440532013000", "DE89370400440532013000"),
            ("gb82-west-1234-5698-7654-32", "gb82-west-1234-5698-7654-32"),
            ("KZ86 125K ZT50 0410 0100 to pay", "KZ86 125K ZT50 0410 0100"),
            ("NO9386011117947", "NO9386011117947"),
            ("MT84MALT011000012345MTLCAST001S.", "MT84MALT011000012345MTLCAST001S"),
        ],
    );
    nothing(&[
        "DE88 3704 0044 0532 0130 00",
        "DE89 3704 0044",
        "DE8937040044053201300",
        "XDE89370400440532013000",
        "AB12CD34EF56GH78",
    ]);
}

#[test]
fn phone_numbers() {
    only(
        Kind::Phone,
        &[
            ("call +77011234567 now", "+77011234567"),
            ("+7 (701) 123-45-67, or", "+7 (701) 123-45-67"),
            ("+7 701 123 45 67 12 items", "+7 701 123 45 67"),
            ("+1-555-010-9999.", "+1-555-010-9999"),
            ("+49 (0)170 1234567", "+49 (0)170 1234567"),
            ("+49.170.1234567. Then", "+49.170.1234567"),
            ("(+44) 20 7946 0958", "+44) 20 7946 0958"),
            ("tel:0170-1234567", "0170-1234567"),
            ("(555) 123-4567", "(555) 123-4567"),
            ("8 (701) 123-45-67", "8 (701) 123-45-67"),
            ("8 (701) 1234567 or", "8 (701) 1234567"),
            ("+1-555-123-45678", "+1-555-123-45678"),
            ("(0170) 1234567", "(0170) 1234567"),
        ],
    );
    // Bare digits are order numbers as often as not.
    nothing(&[
        "order 87011234567",
        "0170 1234567",
        "0049 170 1234567",
        "1234-5678-9012",
        "UTC+0300",
        "2+12345678",
        "+123",
        "+12345678901234567",
        "(2024) 12345678",
        "(555) 1234567",
        "++12345678",
        "C++ 20241130",
    ]);
    assert_eq!(
        found("+49 30 123456 4111 1111 1111 1111"),
        [(Kind::Phone, "+49 30 123456"), (Kind::Card, "4111 1111 1111 1111")]
    );
}

#[test]
fn what_overlaps_is_one_value() {
    let names = Names::declared(["Anna Smith"]).unwrap();
    let text = "Anna smith@x.com";
    assert_eq!(find(text, &names), [Found { at: 0..16, kind: Kind::Email }]);
    // What comes directly behind another value is not glued to it.
    assert_eq!(found("a@x.com+77011234567+77011234568").len(), 3);
    assert_eq!(found("+77011234567@x.com"), [(Kind::Email, "77011234567@x.com")]);
}
