//! `[P]` Why a run says nothing about the gateway: a named reason with its sentence. What is around a gateway can be lost for
//! good, and it can stand still for a while; a run may meet several of these, and one of them explains the others.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

/// The reasons, each by the code of its finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The lab ended, or did not answer.
    LabLost,
    /// The fault server did not answer.
    FaultServerLost,
    /// A path was not as the drill had left it, by somebody else's doing.
    FaultLifted,
    /// What the drill itself had set up healed: it was not heard for too long.
    LeaseLost,
    /// The guard process ended before its time, or gave no sign of life.
    GuardLost,
    /// The drill itself stood still, and its customers with it.
    GeneratorLate,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 6] = [
        Reason::LabLost,
        Reason::FaultServerLost,
        Reason::FaultLifted,
        Reason::LeaseLost,
        Reason::GuardLost,
        Reason::GeneratorLate,
    ];

    /// The code of its finding; a drill that stops for it stops by this name.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Reason::LabLost => "lab_lost",
            Reason::FaultServerLost => "fault_server_lost",
            Reason::FaultLifted => "fault_lifted",
            Reason::LeaseLost => "lease_lost",
            Reason::GuardLost => "guard_lost",
            Reason::GeneratorLate => "generator_late",
        }
    }

    /// The reason of this name.
    #[must_use]
    pub fn named(code: &str) -> Option<Reason> {
        Reason::ALL.into_iter().find(|r| r.code() == code)
    }
}

/// A reason with its sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoilt {
    /// The reason.
    pub reason: Reason,
    /// In one sentence.
    pub text: String,
    /// It was there again afterwards: that excuses failures, and takes nothing from what went well all the same.
    pub for_a_while: bool,
}

impl Spoilt {
    /// For good.
    #[must_use]
    pub fn by(reason: Reason, text: impl Into<String>) -> Spoilt {
        Spoilt { reason, text: text.into(), for_a_while: false }
    }

    /// Whoever it is stood still and came to itself.
    #[must_use]
    pub fn for_a_while(reason: Reason, text: impl Into<String>) -> Spoilt {
        Spoilt { for_a_while: true, ..Spoilt::by(reason, text) }
    }
}

/// All that spoilt a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spoils(Vec<Spoilt>);

impl Spoils {
    /// Adds one.
    pub fn add(&mut self, spoilt: Spoilt) {
        self.0.push(spoilt);
    }

    /// Why nothing in the run can be held against the gateway, if so. A lab that is lost explains everything else; of the
    /// others the first one explains what came of it.
    #[must_use]
    pub fn for_good(&self) -> Option<&Spoilt> {
        self.lab().or_else(|| self.0.iter().find(|s| !s.for_a_while))
    }

    /// The lab is not there any more.
    #[must_use]
    pub fn lab(&self) -> Option<&Spoilt> {
        self.0.iter().find(|s| !s.for_a_while && s.reason == Reason::LabLost)
    }

    /// What stood still and came to itself: failures cannot be told apart from its own.
    #[must_use]
    pub fn stood_still(&self) -> Option<&Spoilt> {
        self.0.iter().find(|s| s.for_a_while)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_explains_the_others() {
        let mut spoils = Spoils::default();
        assert_eq!((spoils.for_good(), spoils.stood_still()), (None, None));
        spoils.add(Spoilt::for_a_while(Reason::LabLost, "900 ms"));
        assert_eq!((spoils.for_good(), spoils.lab()), (None, None));
        spoils.add(Spoilt::by(Reason::LeaseLost, "ran out"));
        spoils.add(Spoilt::by(Reason::FaultLifted, "by it"));
        assert_eq!(spoils.for_good().map(|s| s.reason), Some(Reason::LeaseLost));
        spoils.add(Spoilt::by(Reason::LabLost, "gone"));
        assert_eq!(spoils.for_good().map(|s| s.text.as_str()), Some("gone"));
        assert_eq!(spoils.stood_still().map(|s| s.text.as_str()), Some("900 ms"));
    }

    #[test]
    fn each_reason_is_a_finding_that_makes_a_run_invalid() {
        for reason in Reason::ALL {
            assert_eq!(Reason::named(reason.code()), Some(reason));
            let code = crate::drill::codes::find(reason.code()).unwrap();
            assert_eq!(code.weight, crate::drill::verdict::Weight::Invalid);
        }
        assert_eq!(Reason::named("max_duration"), None);
    }
}
