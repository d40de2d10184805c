//! An outage history: a CSV file with the columns `target, from, to, impact`, as made from a provider's public status page.
//!
//! Times are RFC 3339 with a zone. Impact is `none`, `minor`, `major` or `critical`; what counts as down is the caller's choice.
//! Incidents of one target that overlap are one outage. The history covers the whole months that it touches, unless bounds
//! are given: what happened before the first and after the last line is taken as up.

use std::collections::BTreeMap;
use std::time::Duration;

use super::outages::{Effect, Kind, Listed, Look, Outage, Source};
use crate::policy::Policy;
use crate::units::{Rng, Ts, printable};

/// Lines read at most.
const MOST_LINES: usize = 1_000_000;

/// How grave an incident was, as the provider said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impact {
    /// Information only.
    None,
    /// Degraded.
    Minor,
    /// Partly out.
    Major,
    /// Out.
    Critical,
}

impl Impact {
    fn read(text: &str) -> Option<Impact> {
        Some(match text {
            "none" => Impact::None,
            "minor" => Impact::Minor,
            "major" => Impact::Major,
            "critical" => Impact::Critical,
            _ => return None,
        })
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// Name of the target in the history.
    pub target: String,
    /// Unix seconds.
    pub from_s: i64,
    /// Unix seconds, after `from_s`.
    pub to_s: i64,
    /// How grave.
    pub impact: Impact,
}

/// A history as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Its lines in order.
    pub incidents: Vec<Incident>,
    /// Names in order of appearance.
    pub names: Vec<String>,
    /// Begin of the first month, unix seconds.
    pub from_s: i64,
    /// End of the last month, unix seconds.
    pub to_s: i64,
}

/// Longest history, in years: as many as `--months` takes.
const YEARS_MAX: i64 = 100;

/// Lines with something wrong that are named.
pub const BAD_LINES_MAX: usize = 20;

/// Why a history cannot be read, in one line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// Reads a history.
///
/// # Errors
/// Every line that is wrong, the first 20 of them.
pub fn read(text: &str) -> Result<History, Vec<Unreadable>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let bad = |line: usize, what: String| Unreadable { line, what };
    let mut lines = text.lines().enumerate().map(|(n, l)| (n + 1, l.trim())).filter(|(_, l)| !l.is_empty());
    let Some((line, head)) = lines.next() else { return Err(vec![bad(1, "the file is empty".to_owned())]) };
    let columns: Vec<String> = head.split(',').map(|c| unquoted(c).to_lowercase()).collect();
    let column = |name: &str| {
        columns.iter().position(|c| c == name).ok_or_else(|| {
            vec![bad(line, format!("there is no column `{name}`; the head must name target, from, to, impact"))]
        })
    };
    let (target, from, to, impact) = (column("target")?, column("from")?, column("to")?, column("impact")?);
    let mut incidents = Vec::new();
    let mut numbers = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let mut wrong: Vec<Unreadable> = Vec::new();
    let incident = |line: usize, row: &str| {
        let cells: Vec<&str> = row.split(',').map(unquoted).collect();
        if cells.len() != columns.len() {
            return Err(bad(line, format!("{} cells, but the head has {}", cells.len(), columns.len())));
        }
        let time = |at: usize| {
            let text = cells[at];
            let parsed = text.parse::<jiff::Timestamp>().map(jiff::Timestamp::as_second);
            parsed.map_err(|_| {
                bad(
                    line,
                    format!(
                        "`{}` is no time with a zone (RFC 3339): write it like 2026-01-03T10:00:00Z",
                        printable(text, 40)
                    ),
                )
            })
        };
        let (from_s, to_s) = (time(from)?, time(to)?);
        if to_s < from_s {
            return Err(bad(line, "it ends before it begins".to_owned()));
        }
        let Some(impact) = Impact::read(&cells[impact].to_lowercase()) else {
            let what = format!("`{}` is no impact: none, minor, major or critical", printable(cells[impact], 40));
            return Err(bad(line, what));
        };
        let name = printable(cells[target], 100);
        if name.is_empty() {
            return Err(bad(line, "the target has no name".to_owned()));
        }
        Ok(Incident { target: name, from_s, to_s, impact })
    };
    for (line, row) in lines {
        if incidents.len() == MOST_LINES {
            wrong.push(bad(line, format!("there are more than {MOST_LINES} lines")));
            break;
        }
        let incident = match incident(line, row) {
            Ok(incident) => incident,
            Err(e) => {
                wrong.push(e);
                if wrong.len() == BAD_LINES_MAX {
                    break;
                }
                continue;
            }
        };
        let name = incident.target.clone();
        if !names.contains(&name) {
            names.push(name.clone());
        }
        numbers.push(line);
        incidents.push(incident);
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let first = incidents.iter().map(|i| i.from_s).min();
    let last = incidents.iter().map(|i| i.to_s).max();
    let (from_s, to_s) = match (first.and_then(month_of), last.and_then(month_after)) {
        (Some(from), Some(to)) => (from, to),
        _ => (0, 0),
    };
    if to_s - from_s > YEARS_MAX * 366 * 86_400 {
        let at = incidents.iter().position(|i| i.from_s < to_s - YEARS_MAX * 366 * 86_400).unwrap_or(0);
        let what = format!("the history is longer than {YEARS_MAX} years; is a year mistyped?");
        return Err(vec![bad(numbers.get(at).copied().unwrap_or(1), what)]);
    }
    Ok(History { incidents, names, from_s, to_s })
}

fn unquoted(cell: &str) -> &str {
    let cell = cell.trim();
    cell.strip_prefix('"').and_then(|c| c.strip_suffix('"')).unwrap_or(cell)
}

/// The day of this moment, in UTC.
fn day(unix_s: i64) -> Option<jiff::civil::Date> {
    Some(jiff::tz::Offset::UTC.to_datetime(jiff::Timestamp::from_second(unix_s).ok()?).date())
}

/// Begin of this day, in UTC.
fn begin(day: jiff::civil::Date) -> Option<i64> {
    Some(jiff::tz::Offset::UTC.to_timestamp(day.at(0, 0, 0, 0)).ok()?.as_second())
}

/// Begin of the month of this moment, in UTC.
fn month_of(unix_s: i64) -> Option<i64> {
    begin(day(unix_s)?.first_of_month())
}

/// Begin of the month after this moment, in UTC. A moment at the very begin of a month belongs to the one before.
fn month_after(unix_s: i64) -> Option<i64> {
    begin(day(unix_s - 1)?.last_of_month().tomorrow().ok()?)
}

/// Outages of one name, apart from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Begin and end in unix seconds.
    pub spans: Vec<(i64, i64)>,
}

impl History {
    /// The outages of what has these names: its incidents of this impact or graver, overlaps merged, inside the bounds.
    #[must_use]
    pub fn merged(&self, names: &[&str], down: Impact) -> Merged {
        let mut spans: Vec<(i64, i64)> = Vec::new();
        let mine = |i: &&Incident| names.contains(&i.target.as_str()) && i.impact >= down;
        let mut all: Vec<(i64, i64)> = self.incidents.iter().filter(mine).map(|i| (i.from_s, i.to_s)).collect();
        all.sort_unstable();
        for (from, to) in all {
            let (from, to) = (from.max(self.from_s), to.min(self.to_s));
            if from >= to {
                continue;
            }
            match spans.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => spans.push((from, to)),
            }
        }
        Merged { spans }
    }

    /// Its length.
    #[must_use]
    pub fn span(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.to_s - self.from_s).unwrap_or(0))
    }

    /// Which target stands for which name: those mapped, then the others in order of appearance to the policy's targets that
    /// are still free, in their order. `Err`: a name for which no target is left.
    ///
    /// # Errors
    /// The name that has no target.
    pub fn assign(&self, policy: &Policy, map: &BTreeMap<String, usize>) -> Result<Vec<(String, usize)>, String> {
        let mut free: Vec<usize> = (0..policy.targets.len()).filter(|t| !map.values().any(|m| m == t)).collect();
        free.reverse();
        let mut assigned = Vec::new();
        for name in &self.names {
            let target = map.get(name).copied().or_else(|| free.pop()).ok_or_else(|| name.clone())?;
            assigned.push((name.clone(), target));
        }
        Ok(assigned)
    }

    /// The outages as sources. How each looks is drawn from the seed: a history does not say.
    #[must_use]
    pub fn sources(&self, assigned: &[(String, usize)], down: Impact, seed: u64) -> Vec<Source> {
        let mut rng = Rng::new(seed ^ 0x7ace);
        let at = |unix_s: i64| Ts::from_s(u64::try_from(unix_s - self.from_s).unwrap_or(0));
        let mut sources = Vec::new();
        for (target, names) in by_target(assigned) {
            let outage = |(from, to): &(i64, i64)| {
                let effect = Effect::Down(Look::draw(&mut rng));
                Outage { from: at(*from), to: at(*to), effect }
            };
            let listed = Listed::new(self.merged(&names, down).spans.iter().map(outage).collect());
            sources.push(Source { targets: vec![target], kind: Kind::Listed(listed) });
        }
        sources
    }
}

/// The names of each target, in order of appearance.
#[must_use]
pub fn by_target(assigned: &[(String, usize)]) -> Vec<(usize, Vec<&str>)> {
    let mut all: Vec<(usize, Vec<&str>)> = Vec::new();
    for (name, target) in assigned {
        match all.iter_mut().find(|(known, _)| known == target) {
            Some((_, names)) => names.push(name),
            None => all.push((*target, vec![name])),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "target,from,to,impact\n\
        x,2024-02-10T00:00:00Z,2024-02-10T01:00:00Z,minor\n\
        y,2024-03-01T00:00:00Z,2024-03-01T02:00:00+01:00,major\n\
        x,2024-02-10T00:30:00Z,2024-02-10T02:00:00Z,critical\n\
        x,2024-02-12T00:00:00Z,2024-02-13T00:00:00Z,none\n";

    #[test]
    fn overlaps_are_merged_and_months_are_whole() {
        let history = read(TEXT).unwrap();
        assert_eq!(history.names, ["x", "y"]);
        // February (29 days) and March (31) of 2024.
        assert_eq!(history.span(), Duration::from_secs(60 * 86_400));
        let minutes = |down| {
            let spans = history.merged(&["x"], down).spans;
            spans.iter().map(|(a, b)| (b - a) / 60).collect::<Vec<_>>()
        };
        assert_eq!(minutes(Impact::Minor), [120]);
        assert_eq!(minutes(Impact::Major), [90]);
        assert_eq!(minutes(Impact::None), [120, 1_440]);
        assert_eq!(history.merged(&["y"], Impact::Major).spans.iter().map(|(a, b)| b - a).sum::<i64>(), 3_600);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let all = |text: &str| read(text).map_err(|e| e.into_iter().map(|e| (e.line, e.what)).collect::<Vec<_>>());
        let line = |text: &str| all(text).unwrap_err().remove(0);
        assert_eq!(line("").0, 1);
        assert!(line("a,b\n").1.contains("`target`"));
        assert_eq!(line("target,from,to,impact\nx,2024-02-10T00:00:00Z,2024-02-10,minor\n").0, 2);
        assert!(line(&TEXT.replace("critical", "awful")).1.contains("awful"));
        assert!(line(&TEXT.replace("2024-02-10T02:00:00Z", "2023-02-10T02:00:00Z")).1.contains("before"));
        assert!(line("target,from,to,impact\nx,y\n").1.contains("2 cells"));
        // All of them at once, as far as anybody would read: lines 2, 4 and 5 of this one, and 20 of 30.
        let three =
            TEXT.replace(",minor", ",smal").replace("critical", "awful").replace("2024-02-13T00:00:00Z", "soon");
        let lines: Vec<usize> = all(&three).unwrap_err().into_iter().map(|e| e.0).collect();
        assert_eq!(lines, [2, 4, 5]);
        let many = format!("target,from,to,impact\n{}", "x,y\n".repeat(30));
        let lines: Vec<usize> = all(&many).unwrap_err().into_iter().map(|e| e.0).collect();
        assert_eq!(lines, (2..=21).collect::<Vec<_>>());
    }
}
