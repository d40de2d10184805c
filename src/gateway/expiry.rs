//! Says loudly that the policy has expired: at the start, or when it happens.

use std::sync::Arc;
use std::time::Duration;

use super::app::App;
use super::driver::Watcher;
use crate::event::Event;
use crate::policy::Policy;

/// The wall clock may be set, so nobody sleeps until the moment itself.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// True if this policy answers nobody at all once it has expired.
#[must_use]
pub fn answers_nobody(policy: &Policy) -> bool {
    policy.on_expired_intents.as_ref().is_none_or(Vec::is_empty)
}

/// What an expired policy means for customers, in one sentence.
#[must_use]
pub fn text(policy: &Policy) -> String {
    let when = policy.expires_unix_s.and_then(|s| jiff::Timestamp::from_second(s).ok());
    let when = when.map_or_else(String::new, |at| format!(" on {at}"));
    let answered = match &policy.on_expired_intents {
        Some(intents) if !intents.is_empty() => format!(
            "only the intents {} are answered, without tools; every other request is handed to a human",
            crate::units::printable(&intents.join(", "), 200)
        ),
        _ => "every request is handed to a human (503 handoff, cause expired)".to_owned(),
    };
    format!("the policy expired{when}: {answered}; release one with a later `expires`")
}

/// An alert, if it has expired.
pub fn look(app: &App) -> bool {
    let expired = app.expired();
    if expired {
        let reason = "policy_expired".to_owned();
        app.event(Event::Alert { target: None, client: None, route: None, reason, text: text(&app.policy()) });
    }
    expired
}

/// Looks all the time, and says so each time that it happens: a reload may have brought a policy with a later end.
/// `expired`: what was told already.
pub async fn watch(app: Arc<App>, mut expired: bool) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = app.expired();
        if now && !expired {
            look(&app);
        }
        expired = now;
    }
}
