//! The targets of a policy, ready to be dialled: clients, secrets, and what is known about them at first hand.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::held::Held;
use crate::error::{Expected, Result};
use crate::files;
use crate::policy::{Policy, SecretRef, Target, TargetId};
use crate::units::printable;
use crate::upstream::{Client, Endpoint, PoolLimits, Secret, Tls, read_secret};
use crate::wire::Secrets;

/// A target that can be dialled.
#[derive(Debug)]
pub struct Dialable {
    /// As the policy has it.
    pub target: Arc<Target>,
    /// Its client.
    pub client: Client,
    secret: Option<Secret>,
    /// What is in its `ca_file`: it may be renewed.
    authorities: Option<Vec<u8>>,
    /// What was seen of it.
    pub evidence: Arc<Evidence>,
    /// By which name it knows the output limit of a probe (see [`super::probe`]).
    pub probe_limit: AtomicUsize,
    /// Probes so far: each asks the next case.
    pub probe_turn: AtomicUsize,
}

/// All targets that were ever dialled under the policies of this process, by id.
#[derive(Debug)]
pub struct Targets {
    now: Held<Set>,
}

#[derive(Debug)]
struct Set {
    all: Vec<Arc<Dialable>>,
    values: BTreeSet<String>,
    secrets: Secrets,
}

impl Targets {
    /// Reads the secrets and makes the clients. Relative `file:` paths are searched from `folder`, then its parent.
    ///
    /// # Errors
    /// Names the target and what is wrong with its URL or credential.
    pub fn new(policy: &Policy, folder: &Path) -> Result<Targets> {
        let none = Set { all: Vec::new(), values: BTreeSet::new(), secrets: Secrets::default() };
        Ok(Targets { now: Held::new(none.succeed(policy, folder)?) })
    }

    /// Makes ready what a policy that succeeds this one adds and changes; connections of what is as before stay open. The
    /// result holds from [`Targets::hold`] on.
    ///
    /// # Errors
    /// As [`Targets::new`]; nothing has changed then.
    pub fn prepare(&self, policy: &Policy, folder: &Path) -> Result<Prepared> {
        Ok(Prepared(self.now.now().succeed(policy, folder)?))
    }

    /// What was prepared holds from now on.
    pub fn hold(&self, prepared: Prepared) {
        self.now.hold(prepared.0);
    }
}

/// Targets that could be dialled. See [`Targets::prepare`].
#[derive(Debug)]
pub struct Prepared(Set);

impl Set {
    fn succeed(&self, policy: &Policy, folder: &Path) -> Result<Set> {
        let mut system: Option<Tls> = None;
        // Credentials that were shown once may still come back in an answer.
        let mut values = self.values.clone();
        let mut all: Vec<Arc<Dialable>> = Vec::with_capacity(policy.targets.len());
        for target in &policy.targets {
            let before = self.all.get(usize::from(target.id.0));
            if let Some(before) = before.filter(|_| policy.retired.targets.contains(&target.id)) {
                all.push(Arc::clone(before));
                continue;
            }
            let named = |e: Expected| Expected { what: format!("target {}: {}", target.name, e.what), ..e };
            let endpoint = Endpoint::new(&target.base_url, target.connect_to.as_deref()).map_err(named)?;
            let authorities = match &target.connection.ca_file {
                Some(path) if endpoint.tls => Some(read_authorities(&find(folder, path)).map_err(named)?),
                _ => None,
            };
            let tls = match &authorities {
                Some(pem) => {
                    let of_file = |e: Expected| Expected { what: format!("its `ca_file`: {}", e.what), ..e };
                    Some(Tls::of_authorities(pem).map_err(of_file).map_err(named)?)
                }
                None if endpoint.tls => {
                    if system.is_none() {
                        system = Some(Tls::system().map_err(named)?);
                    }
                    system.clone()
                }
                None => None,
            };
            let secret: Option<Secret> = match &target.credentials {
                None => None,
                Some(SecretRef::File(path)) => Some(read_secret(&target.name, &SecretRef::File(find(folder, path)))?),
                Some(from) => Some(read_secret(&target.name, from)?),
            };
            // Same id: same address, model and place of the credential. What stands in that place may have been renewed.
            if let Some(before) = before.filter(|b| {
                b.target.connect_to == target.connect_to
                    && b.target.connection == target.connection
                    && b.authorities == authorities
                    && b.secret.as_ref().map(Secret::expose) == secret.as_ref().map(Secret::expose)
            }) {
                all.push(Arc::new(Dialable {
                    target: Arc::clone(target),
                    client: before.client.clone(),
                    secret,
                    authorities,
                    evidence: Arc::clone(&before.evidence),
                    probe_limit: AtomicUsize::new(before.probe_limit.load(Ordering::Relaxed)),
                    probe_turn: AtomicUsize::new(before.probe_turn.load(Ordering::Relaxed)),
                }));
                continue;
            }
            if let Some(secret) = &secret {
                values.insert(secret.expose().to_owned());
            }
            let limits = PoolLimits { idle: target.connection.idle, ..PoolLimits::default() };
            let client = Client::new(endpoint, secret.as_ref(), tls, limits).map_err(named)?;
            let client = if target.connection.http2 { client.http2() } else { client };
            // Another credential is no other place: that it is there is known.
            let same_place = before.filter(|b| b.target.connect_to == target.connect_to);
            all.push(Arc::new(Dialable {
                target: Arc::clone(target),
                client,
                secret,
                authorities,
                evidence: same_place.map(|b| Arc::clone(&b.evidence)).unwrap_or_default(),
                probe_limit: AtomicUsize::new(0),
                probe_turn: AtomicUsize::new(0),
            }));
        }
        let secrets = Secrets::new(&values);
        Ok(Set { all, values, secrets })
    }
}

impl Targets {
    /// Every credential value, for redaction.
    #[must_use]
    pub fn secrets(&self) -> Secrets {
        self.now.now().secrets.clone()
    }

    /// One of them. Ids come from the policy that these were made from.
    #[must_use]
    pub fn get(&self, id: TargetId) -> Option<Arc<Dialable>> {
        self.now.now().all.get(usize::from(id.0)).map(Arc::clone)
    }

    /// The one with this name; the newest of several.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<Dialable>> {
        self.now.now().all.iter().rev().find(|d| d.target.name == name).map(Arc::clone)
    }
}

/// Where a `file:` path of a policy leads: from its folder, else from the one above.
pub(super) fn find(folder: &Path, path: &str) -> String {
    let given = Path::new(path);
    if given.is_absolute() {
        return path.to_owned();
    }
    let here = folder.join(given);
    let above = folder.join("..").join(given);
    let found = if !here.exists() && above.exists() { above } else { here };
    found.display().to_string()
}

/// Largest file of certificates: the system's own bundle has about 200 KiB.
const AUTHORITIES_BYTES_MAX: u64 = 4 << 20;

fn read_authorities(path: &str) -> Result<Vec<u8>> {
    let cannot = |why: String| {
        Expected::usage(
            format!("its `ca_file` {} cannot be read: {why}", printable(path, 300)),
            "paths are searched from the policy's folder, then from its parent",
        )
    };
    files::bytes_of_file(Path::new(path), AUTHORITIES_BYTES_MAX).map_err(cannot)
}

/// Evidence that is a connection alone: it was made and closed, nothing was asked.
pub const REACHABLE: &str = "reachable";

/// What was seen of a target at first hand, for readiness: "nothing yet" is not "healthy" (case B107).
#[derive(Debug, Default)]
pub struct Evidence {
    seen: Mutex<Seen>,
}

/// The last good and the last bad thing seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What last went well (`answered`, `probe`, [`REACHABLE`]), and when.
    pub good: Option<(Instant, &'static str)>,
    /// What last failed, by its named reason, and when.
    pub bad: Option<(Instant, String)>,
}

impl Evidence {
    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something went well.
    pub fn good(&self, what: &'static str) {
        self.lock().good = Some((Instant::now(), what));
    }

    /// Something failed.
    pub fn bad(&self, reason: &str) {
        self.lock().bad = Some((Instant::now(), reason.to_owned()));
    }

    /// What was seen.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.lock().clone()
    }
}

impl Seen {
    /// Anything at all has gone well once.
    #[must_use]
    pub fn ever_good(&self) -> bool {
        self.good.is_some()
    }

    /// How old the newest evidence is.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let good = self.good.as_ref().map(|(at, _)| at.elapsed());
        let bad = self.bad.as_ref().map(|(at, _)| at.elapsed());
        match (good, bad) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
