//! The ways in which a guard or a reconciler can be wrong, each with the clause that must notice it.

use super::wrong::wrong_judges;

wrong_judges! {
    /// A way in which a [`PlainGuard`](super::PlainGuard) is wrong.
    WrongGuard:

    /// A value that comes after the time limit is dropped.
    DropsValueAfterLimit => "G01",
    /// A value that comes once the lease is lost is dropped, and the action marked.
    DropsValueOnceLost => "G01",
    /// A refused value is told as an error, and lost.
    StaleValueLost => "G01",
    /// A refused value is told as kept.
    StaleIsExecuted => "G01",
    /// A value is told as kept although another one counts.
    OtherValueIsExecuted => "G01",
    /// The run dies with its caller.
    DiesWithCaller => "G01",
    /// A value is sent only once.
    CompletesOnce => "G01.away",
    /// A panic withdraws the action.
    AbandonsOnPanic => "G02",
    /// An unknown outcome withdraws the action.
    AbandonsOnError => "G02",
    /// The time limit withdraws the action.
    AbandonsOnLimit => "G02",
    /// The time limit writes nothing.
    LimitWritesNothing => "G02",
    /// The closure is not told that its time is over.
    LimitWithoutSignal => "G02",
    /// A failure that is known leaves the action uncertain.
    MarksKnownFailure => "G02",
    /// An abort writes nothing.
    AbortWritesNothing => "G02",
    /// An abort lets the closure go on.
    AbortsNothing => "G02",
    /// Dropping a run withdraws the action though the closure has begun.
    DropAbandonsAfterStart => "G02",
    /// The lease of a dropped run is not renewed any more.
    DetachedNotRenewed => "G02",
    /// A run that was dropped before it began leaves the action uncertain.
    UnpolledMarks => "G02.unpolled",
    /// A run that was dropped before it began is begun all the same.
    UnpolledBegins => "G02.unpolled",
    /// A closure is begun with a lease that is lost already.
    BeginsTooLate => "G02.unpolled",
    /// The lease is never renewed.
    NeverRenews => "G03",
    /// The lease is renewed at the half of its ttl.
    RenewsLate => "G03",
    /// The lease counts from when the answer was received.
    SignalFromAnswer => "G03",
    /// The lease counts as lost at its very end.
    SignalWithoutMargin => "G03",
    /// The lease counts as lost only if the store refuses to renew it.
    SignalOnlyIfRefused => "G03",
    /// Renewals do not move the signal.
    SignalForgetsRenewals => "G03",
    /// A renewal that is answered too late takes the signal back.
    SignalTakenBack => "G03",
    /// Who waits for an outcome does the action itself once the holder has withdrawn.
    WaitingAcquires => "G04",
    /// Who waits for an outcome waits for ever.
    WaitsForEver => "G04",
    /// Who waits for an outcome takes an uncertain action for one under way.
    WaitSeesNoDoubt => "G04",
    /// Who waits for an outcome waits for another action on the resource too.
    WaitsForResource => "G04",
    /// Who waits for a turn never gets it.
    TurnNeverComes => "G04.turn",
    /// Who waits for a turn is told at once.
    TurnDoesNotWait => "G04.turn",
    /// A runtime that shuts down withdraws the action.
    ShutdownAbandons => "G05",
    /// A runtime that shuts down marks the action.
    ShutdownMarks => "G05",
    /// A closure outlives its runtime.
    OutlivesRuntime => "G05",
    /// A nested run waits for itself.
    NestedWaits => "G06",
    /// It acts before it asks.
    ActsFirst => "G07",
    /// An uncertain action is done again.
    RetriesUncertain => "G07",
    /// The probe's unknown is taken for not applied.
    UnknownIsNotApplied => "G08",
    /// A probe that fails is taken for not applied.
    FailureIsNotApplied => "G08",
    /// A probe that hangs is waited for.
    ProbeWithoutLimit => "G08",
    /// What the probe has seen is not kept.
    EvidenceForgotten => "G08",
    /// Applied is ruled without the result.
    ResultForgotten => "G08",
    /// A finding is ruled on whatever episode there is.
    RulesCurrentEpisode => "G08.stale",
    /// A finding is ruled without the right to judge.
    RulesWithoutRight => "G08.stale",
    /// The probe is asked at once.
    ProbesAtOnce => "G09",
    /// The probe is asked at the end of the hold.
    ProbesWithoutDelay => "G09",
    /// The delay is counted from when the action became uncertain.
    DelayFromMark => "G09",
    /// Nothing is sealed.
    NeverSeals => "G09.seal",
    /// It is sealed after the look.
    SealsAfterLook => "G09.seal",
    /// It is sealed with the attempt's own fence.
    SealsWithOwnFence => "G09.seal",
    /// A probe that cannot seal is asked all the same.
    LooksUnsealed => "G09.seal",
    /// The lease is renewed by the thread that the closure blocks, which gives the signal too.
    RenewsInClosure => "G10",
}
