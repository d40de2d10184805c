//! The same values in words and tables, for people.

use std::fmt::Write;

use super::Report;

impl Report {
    /// Rows of the main table: what, one channel, the policy, published.
    #[must_use]
    pub fn table(&self) -> Vec<Vec<String>> {
        let p = &self.policy;
        let published = |value: Option<String>| value.unwrap_or_default();
        let at = self.published;
        let days = self.runs.first().map_or(0.0, |r| r.days);
        let down = |a: Option<f64>| {
            a.map_or("inconclusive".to_owned(), |a| length((1.0 - a) * days * 24.0 / (days / 30.4375).max(1e-9)))
        };
        vec![
            vec![
                "availability".into(),
                percent(self.single.availability),
                percent(p.availability),
                published(at.map(|x| format!("{} -> {}", percent(Some(x.single)), percent(Some(x.policy))))),
            ],
            vec![
                "downtime a month".into(),
                down(self.single.availability),
                down(p.availability),
                published(at.map(|_| "21 h -> 1.4 h".to_owned())),
            ],
            vec!["ceiling (somebody legal is up)".into(), percent(self.single.up), percent(p.ceiling), String::new()],
            vec!["loss against the ceiling".into(), String::new(), points(p.loss), String::new()],
            vec!["recovery p50".into(), String::new(), seconds(p.recovery_p50_s, p.recovery_n), String::new()],
            vec![
                "recovery p95".into(),
                String::new(),
                seconds(p.recovery_p95_s, p.recovery_n),
                published(at.map(|x| format!("{} s", x.recovery_p95_s))),
            ],
        ]
    }

    /// The lines below the main table.
    #[must_use]
    pub fn details(&self) -> String {
        let p = &self.policy;
        let mut out = String::new();
        let mut line = |text: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{text}");
        };
        line(format!(
            "bad ends: broken streams {}, refused {}, handed to people {}",
            percent3(p.broken),
            percent3(p.refused),
            percent3(p.handoffs)
        ));
        line(format!(
            "dials per request {}, dials to a dead target {} per outage, probes {}, targets left or entered service at most {} times a minute",
            number(p.dials_per_request, 4),
            number(p.wasted_dials_per_outage, 1),
            p.probes,
            p.switches_per_minute_max
        ));
        line(format!(
            "outages: {} with a live stand-in recovered, {} did not; {} had no stand-in (every target down {} times)",
            p.recovery_n, p.not_recovered, p.no_stand_in, p.nobody_up
        ));
        line(format!(
            "useful text p95 {} s; requests that met a failure waited {} s on average, p95 {} s",
            number(p.useful_text_p95_s, 2),
            number(p.failure_wait_mean_s, 2),
            number(p.failure_wait_p95_s, 2)
        ));
        for beside in &self.objectives {
            line(format!("objective, not judged: {}", beside.text()));
        }
        for note in &self.notes {
            line(format!("note: {note}"));
        }
        out
    }
}

/// Most decimals of a share.
const MOST_DECIMALS: usize = 6;

/// A share as percent, or that it is inconclusive: two decimals, and as many more as it takes to tell what is missing to 100 %
/// by two digits, so that four nines are not shown as all of it.
#[must_use]
pub fn percent(share: Option<f64>) -> String {
    share.map_or("inconclusive".to_owned(), |s| {
        let missing = (1.0 - s).abs() * 100.0;
        let digits = (2..MOST_DECIMALS).find(|d| missing <= 0.0 || missing * 10f64.powi(*d as i32) >= 10.0);
        format!("{:.*} %", digits.unwrap_or(MOST_DECIMALS), s * 100.0)
    })
}

/// A length in the unit that shows it.
fn length(hours: f64) -> String {
    match hours {
        h if h >= 1.0 || h <= 0.0 => format!("{h:.2} h"),
        h if h * 60.0 >= 1.0 => format!("{:.1} min", h * 60.0),
        h => format!("{:.1} s", h * 3600.0),
    }
}

fn percent3(share: Option<f64>) -> String {
    share.map_or("inconclusive".to_owned(), |s| format!("{:.4} %", s * 100.0))
}

fn points(share: Option<f64>) -> String {
    // A sample of moments may lie above what the time itself gives, and a request may outwait the end of an outage.
    let why = if share.is_some_and(|s| s < 0.0) { " (below 0: the sample lies above the ceiling)" } else { "" };
    share.map_or("inconclusive".to_owned(), |s| format!("{:.4} points{why}", s * 100.0))
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |v| format!("{v:.digits$}"))
}

fn seconds(value: Option<f64>, n: u64) -> String {
    value.map_or(format!("inconclusive (n = {n})"), |v| format!("{v:.2} s (n = {n})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_nines_are_not_shown_as_all_of_it() {
        for (share, shown) in [
            (0.97, "97.00 %"),
            (0.9981, "99.81 %"),
            (0.99986, "99.986 %"),
            (0.999_986, "99.9986 %"),
            (0.999_999_9, "99.999990 %"),
            (1.0, "100.00 %"),
            (0.0, "0.00 %"),
        ] {
            assert_eq!(percent(Some(share)), shown);
        }
        // 30.4375 days of 24 h are 730.5 h: one in 100,000 of it are 26.3 s, one in 1,000 are 43.8 min.
        assert_eq!(
            (length(730.5e-5).as_str(), length(0.7305).as_str(), length(21.0).as_str()),
            ("26.3 s", "43.8 min", "21.00 h")
        );
        assert_eq!(points(Some(-0.000_005)), "-0.0005 points (below 0: the sample lies above the ceiling)");
        assert_eq!(points(Some(0.0001)), "0.0100 points");
    }
}
