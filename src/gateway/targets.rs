//! The targets of a policy, ready to be dialled: clients, secrets, and what is known about them at first hand.

use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Expected, Result};
use crate::policy::{Policy, SecretRef, Target, TargetId};
use crate::upstream::{Client, Endpoint, PoolLimits, Secret, Tls, read_secret};
use crate::wire::Secrets;

/// A target that can be dialled.
#[derive(Debug)]
pub struct Dialable {
    /// As the policy has it.
    pub target: Arc<Target>,
    /// Its client.
    pub client: Client,
    /// What was seen of it.
    pub evidence: Evidence,
    /// By which name it knows the output limit of a probe (see [`super::probe`]).
    pub probe_limit: AtomicUsize,
}

/// All targets of a policy.
#[derive(Debug)]
pub struct Targets {
    all: Vec<Dialable>,
    /// Every credential value, for redaction.
    pub secrets: Secrets,
}

impl Targets {
    /// Reads the secrets and makes the clients. Relative `file:` paths are searched from `folder`, then its parent.
    ///
    /// # Errors
    /// Names the target and what is wrong with its URL or credential.
    pub fn new(policy: &Policy, folder: &Path) -> Result<Targets> {
        let mut tls: Option<Tls> = None;
        let mut values = Vec::new();
        let mut all = Vec::with_capacity(policy.targets.len());
        for target in &policy.targets {
            let named = |e: Expected| Expected { what: format!("target {}: {}", target.name, e.what), ..e };
            let endpoint = Endpoint::new(&target.base_url, target.connect_to.as_deref()).map_err(named)?;
            if endpoint.tls && tls.is_none() {
                tls = Some(Tls::system().map_err(named)?);
            }
            let secret: Option<Secret> = match &target.credentials {
                None => None,
                Some(SecretRef::File(path)) => Some(read_secret(&target.name, &SecretRef::File(find(folder, path)))?),
                Some(from) => Some(read_secret(&target.name, from)?),
            };
            if let Some(secret) = &secret {
                values.push(secret.expose().to_owned());
            }
            let tls = endpoint.tls.then(|| tls.clone()).flatten();
            let client = Client::new(endpoint, secret.as_ref(), tls, PoolLimits::default()).map_err(named)?;
            all.push(Dialable {
                target: Arc::clone(target),
                client,
                evidence: Evidence::default(),
                probe_limit: AtomicUsize::new(0),
            });
        }
        Ok(Targets { all, secrets: Secrets::new(values) })
    }

    /// One of them. Ids come from the policy that these were made from.
    #[must_use]
    pub fn get(&self, id: TargetId) -> Option<&Dialable> {
        self.all.get(usize::from(id.0))
    }

    /// The one with this name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&Dialable> {
        self.all.iter().find(|d| d.target.name == name)
    }

    /// All, in the order of the policy.
    #[must_use]
    pub fn all(&self) -> &[Dialable] {
        &self.all
    }
}

fn find(folder: &Path, path: &str) -> String {
    let given = Path::new(path);
    if given.is_absolute() {
        return path.to_owned();
    }
    let here = folder.join(given);
    let above = folder.join("..").join(given);
    let found = if !here.exists() && above.exists() { above } else { here };
    found.display().to_string()
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
