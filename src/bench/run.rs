//! The run: starts, interleaved rounds, idle streams, soak.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::cells::{CELLS, Cell, Way};
use super::config;
use super::driver::{Numbers, Window, closed};
use super::figures::{Figure, Rounds};
use super::idle::{self, IdleStreams};
use super::soak::{self, Soak};
use super::stage::{Running, Stage, way};
use crate::error::Result;

/// A silent stream of the bench policy is broken off after this.
const IDLE_MS: u64 = 120_000;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// Envoy's program; `None`: without it.
    pub envoy: Option<PathBuf>,
    /// Rounds.
    pub rounds: usize,
    /// Measured seconds of each cell.
    pub seconds: f64,
    /// Starts that are timed.
    pub starts: usize,
    /// Streams held open.
    pub idle_streams: usize,
    /// Minutes of soak.
    pub soak_minutes: Option<f64>,
    /// Gateways that run already.
    pub peers: Vec<Peer>,
    /// Where the mock provider listens.
    pub provider: SocketAddr,
}

/// A gateway that runs already.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// How to ask it.
    pub way: Way,
}

/// One side of the comparison.
#[derive(Clone, Debug)]
pub struct Side {
    /// `direct`, `envoy`, `gateway`, or a peer's name.
    pub name: String,
    /// Its samples, cell by cell as in [`CELLS`].
    pub cells: Vec<Rounds>,
    way: Way,
    pid: Option<u32>,
}

/// How one of ours starts.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// To the first good answer, seconds.
    pub first_answer_s: Option<Figure>,
    /// Resident then, MB.
    pub resident_mb: Option<Figure>,
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The sides.
    pub sides: Vec<Side>,
    /// Starts of the gateway, and of Envoy.
    pub starts: Vec<(&'static str, Start)>,
    /// Open streams.
    pub idle: Option<IdleStreams>,
    /// The soak.
    pub soak: Option<Soak>,
    /// The policy that the gateway ran.
    pub policy: String,
    /// Where the provider listened: what a peer must be pointed at.
    pub provider: SocketAddr,
}

impl Measured {
    /// A side by its name.
    #[must_use]
    pub fn side(&self, name: &str) -> Option<&Side> {
        self.sides.iter().find(|side| side.name == name)
    }
}

impl Side {
    fn new(name: &str, way: Way, pid: Option<u32>) -> Side {
        Side { name: name.to_owned(), cells: vec![Rounds::new(); CELLS.len()], way, pid }
    }

    /// Its samples of a cell.
    #[must_use]
    pub fn rounds(&self, cell: &Cell) -> &[Option<super::figures::Sample>] {
        CELLS.iter().position(|c| c == cell).and_then(|at| self.cells.get(at)).map_or(&[], Vec::as_slice)
    }
}

/// Runs everything on a stage that the caller brings down.
///
/// # Errors
/// A process does not start, or ends.
pub async fn run(stage: &mut Stage, options: &Options, say: &(dyn Fn(&str) + Sync)) -> Result<Measured> {
    let (primary, stand_in) = stage.mock(options.provider).await?;
    let policy = config::policy(primary, stand_in, IDLE_MS);
    let numbers = Numbers::default();
    let (gateway, ours) = {
        say(&format!("starting the gateway {} times", options.starts));
        let mut all = Vec::new();
        for n in 0..options.starts.max(1) {
            let running = stage.gateway(&policy).await?;
            if n + 1 < options.starts {
                stage.end(running.pid).await;
            }
            all.push(running);
        }
        started(all)
    };
    let mut starts = vec![("gateway", ours)];
    let mut sides = vec![Side::new("direct", way(primary), None)];
    if let Some(program) = &options.envoy {
        say(&format!("starting Envoy {} times", options.starts));
        let mut all = Vec::new();
        for n in 0..options.starts.max(1) {
            let running = stage.envoy(program, primary, stand_in).await?;
            if n + 1 < options.starts {
                stage.end(running.pid).await;
            }
            all.push(running);
        }
        let (envoy, theirs) = started(all);
        starts.push(("envoy", theirs));
        sides.extend(envoy.map(|e| Side::new("envoy", e.way, Some(e.pid))));
    }
    sides.extend(gateway.as_ref().map(|g| Side::new("gateway", g.way.clone(), Some(g.pid))));
    sides.extend(options.peers.iter().map(|p| Side::new(&p.name, p.way.clone(), None)));
    rounds(stage, options, &mut sides, &numbers, say).await;
    if let Some(gateway) = gateway {
        stage.end(gateway.pid).await;
    }
    let mut idle = None;
    if options.idle_streams > 0 {
        say(&format!("{} streams open at once", options.idle_streams));
        // Nothing of the rounds is in its memory.
        let fresh = stage.gateway(&policy).await?;
        idle = Some(idle::hold(&fresh, options.idle_streams, &numbers).await);
        stage.end(fresh.pid).await;
    }
    let mut soaked = None;
    if let Some(minutes) = options.soak_minutes {
        say(&format!("soak of {minutes} minutes"));
        let fresh = stage.gateway(&config::policy(primary, stand_in, soak::IDLE_MS)).await?;
        soaked = Some(soak::soak(&fresh, minutes, window(options.seconds), &numbers).await);
        stage.end(fresh.pid).await;
    }
    Ok(Measured { sides, starts, idle, soak: soaked, policy, provider: primary })
}

fn started(mut all: Vec<Running>) -> (Option<Running>, Start) {
    let start = Start {
        first_answer_s: Figure::of(all.iter().map(|r| r.first_answer_s)),
        resident_mb: Figure::of(all.iter().filter_map(|r| r.resident_mb)),
    };
    (all.pop(), start)
}

/// A quarter of the measured time, half a second at most, goes before.
fn window(seconds: f64) -> Window {
    Window { warm: Duration::from_secs_f64((seconds / 4.0).min(0.5)), measured: Duration::from_secs_f64(seconds) }
}

/// Cell by cell the sides follow each other at once, and who is first changes from round to round.
async fn rounds(stage: &Stage, options: &Options, sides: &mut [Side], numbers: &Numbers, say: &(dyn Fn(&str) + Sync)) {
    let window = window(options.seconds);
    for round in 0..options.rounds {
        say(&format!("round {} of {}", round + 1, options.rounds));
        for (at, cell) in CELLS.iter().enumerate() {
            for turn in 0..sides.len() {
                let n = (turn + round) % sides.len();
                let Some(side) = sides.get_mut(n) else { continue };
                let sample = closed(&side.way, cell, window, side.pid, &Arc::clone(numbers)).await;
                if let Some(rounds) = side.cells.get_mut(at) {
                    rounds.push(Some(sample));
                }
            }
            stage.empty_logs();
        }
    }
}
