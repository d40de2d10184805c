//! Another policy takes the place of the one that holds, while requests are under way.
//!
//! Everything that can fail is done first: credentials, certificates, clients. Then it is swapped, targets before the core, so
//! that whoever the core names can be dialled. A policy that cannot be used changes nothing.

use std::sync::{Arc, PoisonError};

use super::clients::book::Client;
use super::driver::{Watcher, state_name};
use super::orders::Orders;
use super::{Gateway, adapters, admission, golden, watch};
use crate::error::Result;
use crate::event::Event;
use crate::policy::Policy;
use crate::policy::succeed::succeed;
use crate::router::Input;

impl Gateway {
    /// The policy that holds.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.app.policy()
    }

    /// Puts this policy in the place of the one that holds.
    ///
    /// # Errors
    /// A credential, a target's URL or a golden set cannot be used; the one that held goes on.
    pub fn reload(&mut self, policy: Policy) -> Result<()> {
        let app = &self.app;
        let before = app.policy();
        let policy = Arc::new(succeed(&before, policy)?);
        let (sets, missing) = golden::read(&policy, &app.folder)?;
        let targets = app.targets.prepare(&policy, &app.folder)?;
        let admission::Read { records, alerts, admitted } =
            admission::read(&policy, &app.folder, app.driver.now(), &sets);
        let (texts, more) = adapters::read(&policy, &app.folder);
        app.targets.hold(targets);
        app.golden.hold(sets);
        app.admitted.hold(admitted);
        let files_say = vec![Input::Evidence { records }, adapters::input(&texts)];
        let changed = app.adapters.hold(&policy, &before, texts);
        files_say.clone_into(&mut self.files_say.lock().unwrap_or_else(PoisonError::into_inner));
        Orders::follow(app, &before, &policy, |orders| {
            app.driver.succeed(&policy, files_say.into_iter().chain(orders).collect());
        });
        if policy.sha256 == before.sha256 {
            // Keys and records may be others; nobody has another policy.
            app.metrics.policy_unchanged();
        } else {
            app.metrics.policy(&policy.version, policy.serial, &policy.sha256, policy.expires_unix_s);
            app.bus.publish(Event::PolicyReplaced {
                policy: policy.version.clone(),
                policy_sha256: policy.sha256.clone(),
                before_sha256: before.sha256.clone(),
            });
        }
        for alert in missing.into_iter().chain(alerts).chain(more).chain(changed) {
            Watcher::event(&**app, alert);
        }
        for target in &app.driver.snapshot().targets {
            app.metrics.state(&target.name, state_name(&target.availability));
        }
        // Whoever has not been seen yet is looked at, by whatever name and key it is known now.
        for look in self.looks.drain(..) {
            look.abort();
        }
        self.looks.extend(watch(app, &policy));
        for gone in before.live_targets().filter(|t| policy.target_named(&t.name).is_none()) {
            app.metrics.forget_target(&gone.name);
        }
        Ok(())
    }

    /// Puts these clients in the place of those that had keys. Without effect where the gateway began without client keys.
    pub fn hold_clients(&self, clients: Vec<Client>) {
        if let Some(all) = &self.app.clients {
            all.hold(clients);
            self.app.metrics.client_keys(true);
            self.app.unknown_routes();
        }
    }

    /// A file of client keys was offered and not taken: people must hear of it, in log, journal and `/events`. `why`: with the
    /// next step.
    pub fn refused_clients(&self, why: &str) {
        let text =
            format!("the client keys were not replaced, those before go on: {}", crate::units::printable(why, 700));
        self.app.metrics.client_keys(false);
        Watcher::event(
            &*self.app,
            Event::Alert { target: None, client: None, route: None, reason: "client_keys_refused".to_owned(), text },
        );
    }

    /// A policy was offered and not taken: people must hear of it, in log, journal and `/events`. `why`: with the next step.
    pub fn refused(&self, why: &str) {
        let text =
            format!("the policy was not replaced, the one before goes on: {}", crate::units::printable(why, 700));
        self.app.metrics.policy_refused();
        Watcher::event(
            &*self.app,
            Event::Alert { target: None, client: None, route: None, reason: "policy_refused".to_owned(), text },
        );
    }
}
