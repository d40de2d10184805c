//! `[P]` Why a run says nothing about the gateway: a named reason with its sentence. A run may meet several of these, and one of
//! them explains the others. What only stood still for a while is in [`super::stalls`], and is named by a reason of these too.
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
    /// The machine was busy: nobody stood still, and everybody was late again and again.
    MachineBusy,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 7] = [
        Reason::LabLost,
        Reason::FaultServerLost,
        Reason::FaultLifted,
        Reason::LeaseLost,
        Reason::GuardLost,
        Reason::GeneratorLate,
        Reason::MachineBusy,
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
            Reason::MachineBusy => "machine_busy",
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
}

impl Spoilt {
    /// This one.
    #[must_use]
    pub fn by(reason: Reason, text: impl Into<String>) -> Spoilt {
        Spoilt { reason, text: text.into() }
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
        self.lab().or_else(|| self.0.first())
    }

    /// The lab is not there any more.
    #[must_use]
    pub fn lab(&self) -> Option<&Spoilt> {
        self.0.iter().find(|s| s.reason == Reason::LabLost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_explains_the_others() {
        let mut spoils = Spoils::default();
        assert_eq!((spoils.for_good(), spoils.lab()), (None, None));
        spoils.add(Spoilt::by(Reason::LeaseLost, "ran out"));
        spoils.add(Spoilt::by(Reason::FaultLifted, "by it"));
        assert_eq!(spoils.for_good().map(|s| s.reason), Some(Reason::LeaseLost));
        spoils.add(Spoilt::by(Reason::LabLost, "gone"));
        assert_eq!(spoils.for_good().map(|s| s.text.as_str()), Some("gone"));
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
